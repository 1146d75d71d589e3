package localtest

import (
	"bytes"
	"sync"
	"testing"
)

// testLog writes whole lines to a test's log.
type testLog struct {
	t    testing.TB
	name string

	mu      sync.Mutex
	pending []byte
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(l.pending, p...)
	for {
		line, rest, whole := bytes.Cut(l.pending, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.t.Logf("%s: %s", l.name, line)
		l.pending = rest
	}
}
