package export_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"geodlq/infra/local"
)

// browser is a headless Chromium, driven with the DevTools protocol over a pair of pipes
// (chromium --remote-debugging-pipe): one JSON message after another, each ended by a
// zero byte.
type browser struct {
	t       *testing.T
	session string // of the page

	mu      sync.Mutex
	to      *os.File
	next    int
	waiting map[int]chan message
	events  []message
	gone    chan struct{}
}

type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// open starts a browser and shows it a page of the given text in a window of 1200 by 800.
func open(t *testing.T, page []byte) *browser {
	t.Helper()
	path, err := local.FindBrowser()
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/map.html"
	if err := os.WriteFile(file, page, 0o600); err != nil {
		t.Fatal(err)
	}
	hears, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	hear, says, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	// No sandbox, for it cannot be had in most containers; the page is our own.
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "--window-size=1200,800", "about:blank")
	cmd.ExtraFiles = []*os.File{hears, says} // 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hears.Close()
	says.Close()
	b := &browser{t: t, to: say, waiting: map[int]chan message{}, gone: make(chan struct{})}
	go b.listen(hear)
	t.Cleanup(func() {
		b.call("Browser.close", nil)
		say.Close()
		cmd.Wait()
		cancel()
		hear.Close()
	})
	var target struct{ TargetID string }
	b.into(&target, "Target.createTarget", map[string]any{"url": "about:blank"})
	var attached struct{ SessionID string }
	b.into(&attached, "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true})
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.must(domain+".enable", nil)
	}
	b.must("Emulation.setDeviceMetricsOverride", map[string]any{"width": 1200, "height": 800, "deviceScaleFactor": 1, "mobile": false})
	b.must("Page.navigate", map[string]any{"url": "file://" + file})
	b.until("document.readyState === 'complete' && document.body.dataset.drawn !== undefined")
	return b
}

func (b *browser) listen(from *os.File) {
	defer close(b.gone)
	r := bufio.NewReader(from)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if m.ID == 0 {
			b.events = append(b.events, m)
		} else if ch := b.waiting[m.ID]; ch != nil {
			delete(b.waiting, m.ID)
			ch <- m
		}
		b.mu.Unlock()
	}
}

func (b *browser) call(method string, params any) (message, error) {
	text, err := json.Marshal(params)
	if err != nil {
		return message{}, err
	}
	if params == nil {
		text = []byte("{}")
	}
	ch := make(chan message, 1)
	b.mu.Lock()
	b.next++
	m := message{ID: b.next, Session: b.session, Method: method, Params: text}
	b.waiting[m.ID] = ch
	line, err := json.Marshal(m)
	if err == nil {
		_, err = b.to.Write(append(line, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return message{}, err
	}
	select {
	case m := <-ch:
		if m.Error != nil {
			return m, fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		return m, nil
	case <-b.gone:
		return message{}, fmt.Errorf("%s: the browser is gone", method)
	}
}

func (b *browser) must(method string, params any) message {
	b.t.Helper()
	m, err := b.call(method, params)
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

func (b *browser) into(result any, method string, params any) {
	b.t.Helper()
	if err := json.Unmarshal(b.must(method, params).Result, result); err != nil {
		b.t.Fatal(err)
	}
}

// eval is what an expression has for a value in the page.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.into(&r, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true})
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	return r.Result.Value
}

// until waits for an expression to become true; the page asks itself at every frame.
func (b *browser) until(expression string) {
	b.t.Helper()
	reached := b.eval(`new Promise((done) => {
		const end = performance.now() + 30000;
		const look = () => { let ok = false; try { ok = ` + expression + `; } catch {} if (ok || performance.now() > end) done(ok); else setTimeout(look, 10); };
		look();
	})`)
	if reached != true {
		b.t.Fatalf("this does not come true in the page: %s", expression)
	}
}

func (b *browser) want(want any, expression string) {
	b.t.Helper()
	if got := b.eval(expression); got != want {
		b.t.Errorf("%s\n  got  %v\n  want %v", expression, got, want)
	}
}

// click presses and releases the mouse at a place in the window.
func (b *browser) click(x, y float64) {
	b.t.Helper()
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		b.must("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1})
	}
}

// clickFeature clicks where the map has a feature.
func (b *browser) clickFeature(id int) {
	b.t.Helper()
	place, ok := b.eval(fmt.Sprintf("screenOf(%d)", id)).([]any)
	if !ok {
		b.t.Fatalf("feature %d is not on the map", id)
	}
	b.click(place[0].(float64), place[1].(float64))
}

// clickElement clicks the middle of the first element that a CSS selector finds.
func (b *browser) clickElement(selector string) {
	b.t.Helper()
	quoted, _ := json.Marshal(selector)
	place := b.eval(`(() => { const e = document.querySelector(` + string(quoted) + `); e.scrollIntoView(); const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; })()`).([]any)
	b.click(place[0].(float64), place[1].(float64))
}

// seen are the events of a kind, and what they carry.
func (b *browser) seen(method string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []string
	for _, e := range b.events {
		if e.Method == method {
			list = append(list, string(e.Params))
		}
	}
	return list
}
