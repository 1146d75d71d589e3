package crs

import "strings"

// roots are the keywords a CRS starts with in WKT 1 (OGC 01-009), in Esri's WKT and
// in WKT 2 (ISO 19162), with the long forms of the latter. BOUNDCRS is not among
// them: it carries a transformation of its own, which an identifier would lose.
var roots = map[string]bool{
	"PROJCS": true, "GEOGCS": true, "GEOCCS": true, "COMPD_CS": true, "VERT_CS": true,
	"PROJCRS": true, "PROJECTEDCRS": true, "GEOGCRS": true, "GEOGRAPHICCRS": true,
	"GEODCRS": true, "GEODETICCRS": true, "COMPOUNDCRS": true, "VERTCRS": true, "VERTICALCRS": true,
}

func looksLikeWKT(s string) bool {
	i := strings.IndexAny(s, "[(")
	if i < 0 {
		return false
	}
	keyword := strings.ToUpper(strings.TrimSpace(s[:i]))
	return roots[keyword] || keyword == "BOUNDCRS"
}

func isKeyword(s string) bool {
	for _, c := range s {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// wkt resolves well-known text by the identifier directly under its root.
func (r resolver) wkt(s string) (int, error) {
	keyword, children, ok := node(s)
	if !ok {
		return 0, r.unknown("it is not well-formed WKT")
	}
	root := strings.ToUpper(keyword)
	if !roots[root] {
		return 0, r.unknown("WKT of a %s cannot be identified", root)
	}
	authority, code, ok := identifier(children)
	if !ok && (root == "COMPD_CS" || root == "COMPOUNDCRS") && len(children) > 1 {
		// Name first, then the horizontal CRS.
		if _, parts, isNode := node(children[1]); isNode {
			authority, code, ok = identifier(parts)
		}
	}
	if !ok {
		return 0, r.unknown("its WKT has no identifier (AUTHORITY or ID) at the root")
	}
	return r.number(strings.ToLower(authority), code)
}

// identifier finds AUTHORITY["EPSG","26910"] or ID["EPSG",26910] among the children
// of a node.
func identifier(children []string) (authority, code string, ok bool) {
	for _, c := range children {
		keyword, args, isNode := node(c)
		if k := strings.ToUpper(keyword); isNode && (k == "AUTHORITY" || k == "ID") && len(args) >= 2 {
			return unquote(args[0]), unquote(args[1]), true
		}
	}
	return "", "", false
}

func unquote(s string) string { return strings.Trim(s, `" `) }

// node splits KEYWORD[a,b,…] into its keyword and its arguments, which stay text.
// Both kinds of bracket are WKT; a quote in a quoted text is doubled.
func node(s string) (keyword string, children []string, ok bool) {
	s = strings.TrimSpace(s)
	open := strings.IndexAny(s, "[(")
	if open < 0 || !isKeyword(strings.TrimSpace(s[:open])) {
		return "", nil, false
	}
	keyword = strings.TrimSpace(s[:open])
	depth, start, quoted := 0, open+1, false
	for i := open; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted // a doubled quote toggles twice
		case quoted:
		case c == '[' || c == '(':
			depth++
		case c == ']' || c == ')':
			depth--
			if depth == 0 {
				children = append(children, strings.TrimSpace(s[start:i]))
				return keyword, children, strings.TrimSpace(s[i+1:]) == ""
			}
		case c == ',' && depth == 1:
			children = append(children, strings.TrimSpace(s[start:i]))
			start = i + 1
		}
	}
	return "", nil, false
}
