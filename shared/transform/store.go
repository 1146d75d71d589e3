package transform

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"geodlq/shared/deadletter"
	"geodlq/shared/jsonscan"
)

// checkStorable refuses what PostgreSQL's jsonb would refuse (and so take down the
// statement that a whole batch shares), or would silently keep a part of only:
//
//   - text with U+0000 or the escape of a lone surrogate, and a number beyond numeric (1e400 is
//     fine, 1e200000 is not): unstorable_text;
//   - an object inside the value that has a member twice with different values, of which jsonb
//     would keep the last: ambiguous_json.
//
// raw is valid JSON. Its nesting was capped when it was decoded.
func checkStorable(attribute string, raw []byte) *deadletter.Fault {
	switch jsonscan.KindOf(raw) {
	case jsonscan.KindString:
		if escape, _, bad := jsonscan.HasUnstorable(raw); bad {
			return unstorableText(attribute, escape)
		}
	case jsonscan.KindNumber:
		if !fitsNumeric(raw) {
			return deadletter.Faultf(deadletter.ReasonUnstorableText, storeRule(attribute), "%s is %s, a number beyond what PostgreSQL's numeric can hold",
				label(attribute), quoteExcerpt(raw))
		}
	case jsonscan.KindArray:
		s := jsonscan.New(raw, len(raw))
		for range s.Elements() {
			if f := checkStorable(attribute, s.Value()); f != nil {
				return f
			}
		}
	case jsonscan.KindObject:
		// An object of few members is searched, one of many indexed: no quadratic time.
		const few = 16
		type member struct {
			name string
			raw  []byte
		}
		var members []member
		var index map[string]int
		s := jsonscan.New(raw, len(raw))
		for name := range s.Members() {
			value := s.Value()
			if f := checkStorableName(attribute, string(name)); f != nil {
				return f
			}
			if f := checkStorable(attribute, value); f != nil {
				return f
			}
			at := -1
			if index != nil {
				if i, ok := index[string(name)]; ok {
					at = i
				}
			} else {
				for i := range members {
					if members[i].name == string(name) {
						at = i
					}
				}
			}
			if at >= 0 {
				if !jsonscan.Equal(members[at].raw, value) {
					return deadletter.Faultf(deadletter.ReasonAmbiguousJSON, storeRule(attribute), "inside %s, member %q occurs twice with different values",
						label(attribute), quoteExcerpt(name))
				}
				continue
			}
			members = append(members, member{string(name), value})
			if index != nil {
				index[string(name)] = len(members) - 1
			} else if len(members) > few {
				index = make(map[string]int, 4*few)
				for i := range members {
					index[members[i].name] = i
				}
			}
		}
	}
	return nil
}

// checkStorableName refuses an unescaped name that jsonb cannot hold.
func checkStorableName(attribute, name string) *deadletter.Fault {
	if strings.IndexByte(name, 0) >= 0 {
		return unstorableText(attribute, `\u0000`)
	}
	if !utf8.ValidString(name) {
		return unstorableText(attribute, "the escape of a lone surrogate")
	}
	return nil
}

func unstorableText(attribute, what string) *deadletter.Fault {
	return deadletter.Faultf(deadletter.ReasonUnstorableText, storeRule(attribute), "%s holds %s, which no text or jsonb column can", label(attribute), what)
}

func storeRule(attribute string) string { return "store:" + label(attribute) }

// label makes an attribute's name fit for a rule and a message: storable, and not too long.
func label(name string) string {
	const most = 120
	name = deadletter.Text(name)
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	return name
}

// quoteExcerpt shortens text of the feature for a message.
func quoteExcerpt(b []byte) string {
	const most = 60
	if len(b) <= most {
		return string(b)
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(string(b[:most]), ""), len(b))
}
