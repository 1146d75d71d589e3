package deadletter

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Fault is the typed error for "this one feature cannot be replayed, and this is
// why". Decoder, CRS and contract return it; the replay engine turns it into the
// row's error_type, failed_rule and error. Find it with [AsFault].
type Fault struct {
	Reason Reason
	// Rule labels what must be fixed, e.g. "coerce:built_year->integer"; it lands
	// in failed_rule so that failures group by it. Empty keeps the row's rule.
	Rule string
	// Detail says value, vertex or position in words an engineer can act on. It
	// never holds the whole feature.
	Detail string
	// Err is the cause, where there is one; it is not part of the message.
	Err error
}

// Faultf makes a [Fault] with a formatted detail.
func Faultf(reason Reason, rule, format string, args ...any) *Fault {
	return &Fault{Reason: reason, Rule: rule, Detail: fmt.Sprintf(format, args...)}
}

func (f *Fault) Error() string { return string(f.Reason) + ": " + f.Detail }

func (f *Fault) Unwrap() error { return f.Err }

// AsFault returns the Fault in err's chain.
func AsFault(err error) (*Fault, bool) {
	var f *Fault
	ok := errors.As(err, &f)
	return f, ok
}

// The longest texts kept, in characters. Labels (rules, types) stand in an index,
// whose entries PostgreSQL bounds.
const (
	MaxMessage = 500
	MaxLabel   = 200
)

// Message makes s fit for an error column: valid UTF-8 without U+0000 (which
// PostgreSQL text cannot hold) and at most [MaxMessage] characters, cut on a rune
// boundary.
func Message(s string) string { return cut(Text(s), MaxMessage) }

// Label does the same for a rule or an error type, at most [MaxLabel] characters.
func Label(s string) string { return cut(Text(s), MaxLabel) }

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	n := 0
	for i := range s {
		if n == most {
			return s[:i]
		}
		n++
	}
	return s
}

// Text makes s storable as PostgreSQL text: invalid UTF-8 and U+0000 become
// U+FFFD. It is for labels and messages, never for a payload.
func Text(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
