package jsonscan

import (
	"bytes"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// Unquote returns the text of a string value as [Scanner.Value] gives it, quotes
// and all. Without escapes the text is a slice of raw. The escape of a
// surrogate that has no partner stands for no character and is an [*Error] of
// class [ErrSurrogate]; a raw that is no string is one of class [ErrKind].
func Unquote(raw []byte) ([]byte, error) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return nil, &Error{Class: ErrKind, Detail: fmt.Sprintf("want %v, found %v", KindString, KindOf(raw))}
	}
	inner := raw[1 : len(raw)-1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner, nil
	}
	text, lone := appendUnescaped(make([]byte, 0, len(inner)), inner, false)
	if lone >= 0 {
		return nil, &Error{Class: ErrSurrogate, Offset: 1 + lone, Detail: fmt.Sprintf("%s has no partner", inner[lone:lone+6])}
	}
	return text, nil
}

// appendUnescaped appends the text of a string's inside, which must be valid. It
// stops at the first lone surrogate and returns its offset, -1 when there is none; with
// keep it goes on and writes the surrogate as if UTF-8 had it.
func appendUnescaped(dst, inner []byte, keep bool) (text []byte, lone int) {
	for i := 0; i < len(inner); {
		next := bytes.IndexByte(inner[i:], '\\')
		if next < 0 {
			return append(dst, inner[i:]...), -1
		}
		dst = append(dst, inner[i:i+next]...)
		i += next
		switch c := inner[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, n := escapedRune(inner[i:])
			if utf16.IsSurrogate(r) {
				if !keep {
					return dst, i
				}
				// The bit pattern of a three-byte sequence (RFC 3629 section 3).
				dst = append(dst, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F)
			} else {
				dst = utf8.AppendRune(dst, r)
			}
			i += n
			continue
		default: // quote, backslash, slash
			dst = append(dst, c)
		}
		i += 2
	}
	return dst, -1
}

// escapedRune reads the \uXXXX at the start of b, or two of them that are a
// surrogate pair, and returns how many bytes that took. A lone surrogate comes as it is.
func escapedRune(b []byte) (rune, int) {
	r := hex4(b[2:])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		if pair := utf16.DecodeRune(r, hex4(b[8:])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return r, 6
}

func hex4(b []byte) rune {
	return rune(hexValue(b[0])<<12 | hexValue(b[1])<<8 | hexValue(b[2])<<4 | hexValue(b[3]))
}

// HasUnstorable reports whether raw, a valid value of any kind, has an escape in a string or
// name that PostgreSQL's jsonb refuses: \u0000 (SQLSTATE 22P05) or a lone surrogate
// (22P02). found is the escape as written, offset where it stands in raw.
func HasUnstorable(raw []byte) (found string, offset int, ok bool) {
	for i := 0; i < len(raw); {
		next := bytes.IndexByte(raw[i:], '\\')
		if next < 0 {
			break
		}
		i += next
		if raw[i+1] != 'u' {
			i += 2
			continue
		}
		r, n := escapedRune(raw[i:])
		if r == 0 || utf16.IsSurrogate(r) {
			return string(raw[i : i+6]), i, true
		}
		i += n
	}
	return "", 0, false
}

// AppendQuoted appends text as a JSON string. It escapes what RFC 8259 section 7
// asks for and nothing else; bytes that are not UTF-8 become U+FFFD.
func AppendQuoted[T string | []byte](dst []byte, text T) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(text); {
		c := text[i]
		if plain[c] && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(string(text[i:min(len(text), i+utf8.UTFMax)]))
			if r == utf8.RuneError && n == 1 {
				dst = append(dst, text[start:i]...)
				dst = append(dst, "\uFFFD"...)
				i++
				start = i
				continue
			}
			i += n
			continue
		}
		dst = append(dst, text[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xF])
		}
		i++
		start = i
	}
	return append(append(dst, text[start:]...), '"')
}

// Equal reports whether two valid values are written alike: the same but for white
// space between tokens and for how strings are escaped. Numbers count as equal digit for
// digit and members in order only, so a false is no proof that they differ in meaning.
func Equal(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	for {
		var x, y []byte
		x, a = token(a)
		y, b = token(b)
		if !bytes.Equal(x, y) {
			if KindOf(x) != KindString || KindOf(y) != KindString {
				return false
			}
			s, _ := appendUnescaped(nil, x[1:len(x)-1], true)
			t, _ := appendUnescaped(nil, y[1:len(y)-1], true)
			if !bytes.Equal(s, t) {
				return false
			}
		}
		if len(x) == 0 {
			return true
		}
	}
}

// token cuts the first token off valid JSON; it is empty at the end.
func token(b []byte) (tok, rest []byte) {
	i := 0
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	b = b[i:]
	if len(b) == 0 {
		return nil, nil
	}
	n := 1
	switch b[0] {
	case '{', '}', '[', ']', ',', ':':
	case '"':
		for b[n] != '"' {
			if b[n] == '\\' {
				n++
			}
			n++
		}
		n++
	default:
		for n < len(b) && !delimits(b[n]) {
			n++
		}
	}
	return b[:n], b[n:]
}

// delimits reports whether c ends a number or literal.
func delimits(c byte) bool {
	switch c {
	case ' ', '\n', '\r', '\t', ',', ':', ']', '}', '[', '{', '"':
		return true
	}
	return false
}
