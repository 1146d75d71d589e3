package jsonscan

// Extent finds where one JSON value ends in a text that comes in pieces, such as
// a member of a collection too large to hold. It goes by quotes and brackets
// alone: whether the value is valid, [Valid] or a [Scanner] says once it is whole.
// The zero Extent is ready for a value; it is used for one.
type Extent struct {
	state extentState
	depth int
}

type extentState uint8

const (
	beforeValue extentState = iota
	inScalar
	inBrackets
	inString // inside brackets or, at depth 0, the value itself
	inEscape
	afterValue
)

// Scan reads on in p and returns how many of its bytes belong to the value, white space
// before it included, and whether the value ended there. A number or literal ends
// before the byte that delimits it, and so may need the end of the text to end.
func (e *Extent) Scan(p []byte) (n int, done bool) {
	for i := 0; i < len(p); {
		switch e.state {
		case beforeValue:
			switch c := p[i]; {
			case c == ' ' || c == '\n' || c == '\r' || c == '\t':
				i++
			case c == '"':
				e.state = inString
				i++
			case c == '[' || c == '{':
				e.state, e.depth = inBrackets, 1
				i++
			default:
				// Whatever it is, take one byte, so that a caller always gets ahead.
				e.state = inScalar
				i++
			}
		case inScalar:
			if delimits(p[i]) {
				e.state = afterValue
				return i, true
			}
			i++
		case inBrackets:
			for i < len(p) && e.state == inBrackets {
				switch p[i] {
				case '"':
					e.state = inString
				case '[', '{':
					e.depth++
				case ']', '}':
					if e.depth--; e.depth == 0 {
						e.state = afterValue
						return i + 1, true
					}
				}
				i++
			}
		case inString:
			for i < len(p) && p[i] != '"' && p[i] != '\\' {
				i++
			}
			if i == len(p) {
				break
			}
			switch {
			case p[i] == '\\':
				e.state = inEscape
			case e.depth > 0:
				e.state = inBrackets
			default:
				e.state = afterValue
				return i + 1, true
			}
			i++
		case inEscape:
			e.state = inString
			i++
		case afterValue:
			return 0, true
		}
	}
	return len(p), e.state == afterValue
}
