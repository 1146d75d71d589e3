package config

import (
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
)

// Secret is text that no log line, error or JSON document shows. Convert it to a
// string where it is used.
type Secret string

const hidden = "(not shown)"

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString keeps %#v from showing the value.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// Format keeps every fmt verb from showing the value.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue keeps slog from showing the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps encoders from showing the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Bytes is a size, written as a whole number with an optional unit B, KiB, MiB,
// GiB or TiB (powers of 1024).
type Bytes int64

// From the largest down, so that String finds the largest unit that divides.
var units = []struct {
	name string
	size int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// UnmarshalText reads "32MiB", "32 MiB" or "33554432".
func (b *Bytes) UnmarshalText(text []byte) error {
	s, size := string(text), int64(1)
	for _, u := range units {
		if digits, ok := strings.CutSuffix(s, u.name); ok {
			s, size = strings.TrimRight(digits, " "), u.size
			break
		}
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return fmt.Errorf("%q is not a size: want a whole number with B, KiB, MiB, GiB, TiB or no unit", text)
	}
	if int64(n) > math.MaxInt64/size {
		return fmt.Errorf("%q is not a size: it is more than 8 EiB", text)
	}
	*b = Bytes(int64(n) * size)
	return nil
}

// String is the shortest exact form.
func (b Bytes) String() string {
	for _, u := range units {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return "0B"
}

// ExecMode is how statements are sent to the database.
type ExecMode string

const (
	// ExecCacheStatement prepares each statement once per connection: fastest on a
	// direct connection, but session state that a transaction pooler loses.
	ExecCacheStatement ExecMode = "cache_statement"
	// ExecPlain uses the extended protocol without named statements, for RDS Proxy
	// and PgBouncer.
	ExecPlain ExecMode = "exec"
)
