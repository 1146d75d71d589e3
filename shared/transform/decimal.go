package transform

import (
	"bytes"
	"strings"
)

// decimal is an exact decimal number: 0.digits × 10^exp, with no zero at either end of
// digits; zero has none. Comparing two takes time in their digits, whatever the exponents.
type decimal struct {
	negative bool
	digits   string
	exp      int64
}

// parseDecimal reads a number that has the grammar of JSON. An exponent beyond any use saturates.
func parseDecimal(number []byte) decimal {
	var d decimal
	if number[0] == '-' {
		d.negative = true
		number = number[1:]
	}
	mantissa, exp := cutExponent(number)
	whole, fraction, _ := bytes.Cut(mantissa, []byte{'.'})
	digits := make([]byte, 0, len(whole)+len(fraction))
	digits = append(append(digits, whole...), fraction...)
	significant := bytes.TrimLeft(digits, "0")
	d.exp = int64(len(whole)-(len(digits)-len(significant))) + exp
	d.digits = string(bytes.TrimRight(significant, "0"))
	if d.digits == "" {
		return decimal{}
	}
	return d
}

// cutExponent splits a number before its e or E.
func cutExponent(number []byte) (mantissa []byte, exp int64) {
	const huge = 1 << 40
	at := bytes.IndexAny(number, "eE")
	if at < 0 {
		return number, 0
	}
	sign := int64(1)
	for _, c := range number[at+1:] {
		switch {
		case c == '-':
			sign = -1
		case c != '+' && exp < huge:
			exp = exp*10 + int64(c-'0')
		}
	}
	return number[:at], sign * exp
}

func (d decimal) compare(e decimal) int {
	switch {
	case d.negative != e.negative:
		if d.negative {
			return -1
		}
		return 1
	case d.negative:
		return e.magnitude(d)
	default:
		return d.magnitude(e)
	}
}

// magnitude compares without sign.
func (d decimal) magnitude(e decimal) int {
	switch {
	case d.digits == "" || e.digits == "":
		return len(d.digits) - len(e.digits)
	case d.exp != e.exp:
		if d.exp < e.exp {
			return -1
		}
		return 1
	default:
		return strings.Compare(d.digits, e.digits)
	}
}

// isInteger reports whether there is nothing behind the decimal point.
func (d decimal) isInteger() bool { return int64(len(d.digits)) <= d.exp || d.digits == "" }

// appendInteger appends an integer's digits, or reports that they would be too many to write out.
func (d decimal) appendInteger(dst []byte) ([]byte, bool) {
	const most = 40
	if d.digits == "" {
		return append(dst, '0'), true
	}
	if d.exp > int64(max(most, len(d.digits))) {
		return dst, false
	}
	if d.negative {
		dst = append(dst, '-')
	}
	dst = append(dst, d.digits...)
	for range d.exp - int64(len(d.digits)) {
		dst = append(dst, '0')
	}
	return dst, true
}

// key is the same for numbers that are equal.
func (d decimal) key() string {
	b := make([]byte, 0, len(d.digits)+24)
	if d.negative {
		b = append(b, '-')
	}
	b = append(b, d.digits...)
	b = append(b, 'e')
	return string(appendInt(b, d.exp))
}

// The bounds of jsonb's numbers: PostgreSQL's numeric takes 131072 digits before the decimal point and 16383
// after it, and an exponent below INT_MAX/2 (PostgreSQL 15, src/backend/utils/adt/numeric.c).
const (
	numericWhole    = 131072
	numericFraction = 16383
	numericExponent = 1<<30 - 1
)

// fitsNumeric reports whether jsonb takes a JSON number.
func fitsNumeric(number []byte) bool {
	mantissa, exp := cutExponent(number)
	if len(mantissa) == len(number) && len(number) <= numericFraction {
		return true
	}
	if exp >= numericExponent || exp <= -numericExponent {
		return false
	}
	_, fraction, _ := bytes.Cut(mantissa, []byte{'.'})
	if int64(len(fraction))-exp > numericFraction {
		return false
	}
	d := parseDecimal(number)
	return d.digits == "" || d.exp <= numericWhole
}
