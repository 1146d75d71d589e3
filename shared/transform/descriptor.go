package transform

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"geodlq/shared/crs"
	"geodlq/shared/jsonscan"
)

// The members that matter, by place.
var (
	contractMembers   = []string{"version", "fields", "missingValues", "primaryKey", "target", "overrides"}
	fieldMembers      = []string{"name", "type", "format", "constraints", "missingValues", "trueValues", "falseValues", "decimalChar", "groupChar", "bareNumber", "categories"}
	constraintMembers = []string{"required", "unique", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "enum", "jsonSchema"}
	targetMembers     = []string{"epsg", "geometryType", "promoteToMulti", "repair", "maxAreaChange", "unknownAttributes"}
	overrideMembers   = []string{"match", "sourceCrs", "rename", "values", "description"}
	matchMembers      = []string{"batchId", "featureId", "failedRule", "sourceCrs"}
	geometryTypes     = []string{"Geometry", "Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon", "GeometryCollection"}
)

// contract reads the document of a contract into c.
func (d *document) contract(c *Contract, text []byte) {
	root, ok := d.root(text)
	if !ok {
		return
	}
	var fields, primaryKey node
	missing := []string{""}
	meant := false // the document says something a contract says
	for name, n := range d.members(root) {
		switch name {
		case "version":
			if version, ok := d.text(n); ok && (version == "" || len(version) > 200) {
				d.problem(n.pointer, "want a text of 1 to 200 bytes")
			} else if ok {
				c.version = version
			}
		case "missingValues":
			missing = d.missingValues(n)
		case "fields":
			fields, meant = n, true
		case "primaryKey":
			primaryKey = n
		case "target":
			d.target(c, n)
			meant = true
		case "overrides":
			for _, element := range d.elements(n) {
				if o, ok := d.override(element); ok {
					c.overrides = append(c.overrides, o)
				}
			}
			meant = true
		case "resources", "schema":
			if fields.raw == nil {
				d.problem(n.pointer, "this is a data package or data resource; give the Table Schema inside it, with its fields at the top")
			}
			meant = true
		default:
			d.custom(n, name, contractMembers)
		}
	}
	if !meant {
		d.problem("", "want a Table Schema with fields, or at least a target or overrides")
	}
	if fields.raw != nil {
		c.fields = make(map[string]*field)
		for _, n := range d.elements(fields) {
			f, ok := d.field(n, missing)
			if !ok {
				continue
			}
			if c.fields[f.name] != nil {
				d.problem(n.child("name"), "there is another field %q", f.name)
				continue
			}
			f.index = len(c.fields)
			c.fields[f.name] = f
		}
	}
	if primaryKey.raw != nil {
		d.primaryKey(c, primaryKey)
	}
	// In the order of the document, so that the first one missing is named.
	for _, f := range c.fields {
		if f.constraints.required {
			c.required = append(c.required, f)
		}
	}
	slices.SortFunc(c.required, func(a, b *field) int { return a.index - b.index })
}

// missingValues reads an array of strings, or of objects with a value (Table Schema 2).
func (d *document) missingValues(n node) []string {
	out := []string{}
	for _, element := range d.elements(n) {
		if element.kind() != jsonscan.KindObject {
			if text, ok := d.text(element); ok {
				out = append(out, text)
			}
			continue
		}
		found := false
		for name, member := range d.members(element) {
			if name == "value" {
				found = true
				if text, ok := d.text(member); ok {
					out = append(out, text)
				}
			}
		}
		if !found {
			d.problem(element.pointer, "the object has no member value")
		}
	}
	return out
}

// primaryKey makes its fields required, which is what it says of one row.
func (d *document) primaryKey(c *Contract, n node) {
	keys := []node{n}
	if n.kind() == jsonscan.KindArray {
		keys = keys[:0]
		for _, element := range d.elements(n) {
			keys = append(keys, element)
		}
	}
	for _, key := range keys {
		name, ok := d.text(key)
		if !ok {
			continue
		}
		f := c.fields[name]
		if f == nil {
			d.problem(key.pointer, "there is no field %q", name)
			continue
		}
		f.constraints.required = true
	}
	d.warning(n.pointer, "that its values are unique is not checked; its fields are required")
}

func (d *document) target(c *Contract, n node) {
	promote := false
	var promoteAt node
	for name, n := range d.members(n) {
		switch name {
		case "epsg":
			code, ok := d.integer(n)
			if !ok {
				break
			}
			if _, err := crs.Resolve("EPSG:" + strconv.Itoa(code)); err != nil {
				d.problem(n.pointer, "%v", err)
				break
			}
			c.target.EPSG = code
		case "geometryType":
			if t, ok := d.word(n, geometryTypes...); ok && t != "Geometry" {
				c.target.GeometryType = t
			}
		case "promoteToMulti":
			promote, _ = d.boolean(n)
			promoteAt = n
		case "repair":
			if method, ok := d.word(n, string(RepairStructure), string(RepairLinework), string(RepairOff)); ok {
				c.target.Repair = Repair(method)
			}
		case "maxAreaChange":
			if share, ok := d.number(n); ok && share < 0 {
				d.problem(n.pointer, "want a fraction of the area, 0 or more, found %s", n.raw)
			} else if ok {
				c.target.MaxAreaChange = share
			}
		case "unknownAttributes":
			if what, ok := d.word(n, keepUnknown, dropUnknown, rejectUnknown); ok {
				c.unknown = what
			}
		default:
			d.unknown(n, name, targetMembers)
		}
	}
	multi := strings.HasPrefix(c.target.GeometryType, "Multi")
	c.target.PromoteToMulti = multi
	if promoteAt.raw != nil {
		c.target.PromoteToMulti = promote
		if promote && !multi && c.target.GeometryType != "" {
			d.problem(promoteAt.pointer, "a column of type %s cannot hold what promotion makes", c.target.GeometryType)
		}
	}
}

// field reads one field descriptor.
func (d *document) field(n node, missing []string) (*field, bool) {
	f := &field{typ: typeAny, missing: missing, bareNumber: true, decimalChar: ".",
		trueValues: []string{"true", "True", "TRUE", "1"}, falseValues: []string{"false", "False", "FALSE", "0"}}
	f.constraints.minLength, f.constraints.maxLength = -1, -1
	before := len(d.problems)
	var format, constraints, categories, decimalChar, groupChar node
	for name, n := range d.members(n) {
		switch name {
		case "name":
			f.name, _ = d.text(n)
		case "type":
			f.typ = d.fieldType(n)
		case "format":
			format = n
		case "constraints":
			constraints = n
		case "categories":
			categories = n
		case "missingValues":
			f.missing = d.missingValues(n)
		case "trueValues":
			f.trueValues = d.texts(n)
		case "falseValues":
			f.falseValues = d.texts(n)
		case "decimalChar":
			decimalChar = n
		case "groupChar":
			groupChar = n
		case "bareNumber":
			f.bareNumber, _ = d.boolean(n)
		default:
			d.custom(n, name, fieldMembers)
		}
	}
	if f.name == "" && len(d.problems) == before {
		d.problem(n.pointer, "the field has no name")
	}
	for _, value := range f.trueValues {
		if in(f.falseValues, []byte(value)) {
			d.problem(n.pointer, "%q is both a true and a false value", value)
		}
	}
	if decimalChar.raw != nil {
		if f.decimalChar, _ = d.text(decimalChar); f.decimalChar == "" || strings.ContainsAny(f.decimalChar, "0123456789+-eE") {
			d.problem(decimalChar.pointer, "want a text that is not part of a number otherwise")
		}
	}
	if groupChar.raw != nil {
		if f.groupChar, _ = d.text(groupChar); f.groupChar != "" && (f.groupChar == f.decimalChar && f.typ == typeNumber || strings.ContainsAny(f.groupChar, "0123456789+-eE")) {
			d.problem(groupChar.pointer, "want a text that is not part of a number otherwise")
		}
	}
	if format.raw != nil {
		d.format(f, format)
	}
	if categories.raw != nil {
		d.categories(f, categories)
	}
	name := label(f.name)
	f.requireRule = "require:" + name
	f.coerceRule = "coerce:" + name + "->" + string(f.typ)
	f.constrainRule = "constrain:" + name
	// Constraints are read as values of the field, so the field must be whole.
	if constraints.raw != nil && len(d.problems) == before {
		d.constraints(f, constraints)
	}
	return f, len(d.problems) == before
}

func (d *document) fieldType(n node) fieldType {
	name, ok := d.text(n)
	if !ok {
		return typeAny
	}
	known := make([]string, 0, len(fieldTypes))
	for _, t := range fieldTypes {
		if string(t) == name {
			return t
		}
		known = append(known, string(t))
	}
	for _, t := range uncheckedTypes {
		if string(t) == name {
			d.warning(n.pointer, "values of type %s are not checked and pass as they are", name)
			return typeAny
		}
	}
	d.problem(n.pointer, "%q is none of %s%s", name, strings.Join(known, ", "), suggest(name, known))
	return typeAny
}

func (d *document) format(f *field, n node) {
	format, ok := d.text(n)
	if !ok || format == "default" || format == "" {
		return
	}
	format = strings.TrimPrefix(format, "fmt:") // of the first drafts of Table Schema
	_, temporal := f.typ.temporal()
	switch {
	case f.typ == typeString:
		f.format, _ = d.word(node{jsonscan.AppendQuoted(nil, format), n.pointer}, "email", "uri", "binary", "uuid")
	case temporal && format == "any":
		f.anyForm = true
	case temporal && f.typ != typeYearmonth:
		pattern, err := parsePattern(format)
		if err != nil {
			d.problem(n.pointer, "%v", err)
			return
		}
		f.format, f.pattern = format, pattern
	default:
		// Formats of other types say nothing that is checked here.
	}
}

// categories restrict a field as an enum does (Table Schema 2).
func (d *document) categories(f *field, n node) {
	var values []node
	for _, element := range d.elements(n) {
		if element.kind() == jsonscan.KindObject {
			for name, member := range d.members(element) {
				if name == "value" {
					values = append(values, member)
				}
			}
			continue
		}
		values = append(values, element)
	}
	d.enum(f, n, values)
}

func (d *document) enum(f *field, n node, values []node) {
	set := make(map[string]struct{})
	for _, value := range values {
		v, message := f.coerce(value.raw)
		switch {
		case message != "":
			d.problem(value.pointer, "the value is not of the field's type: %s", message)
		case v.null:
		default:
			set[f.key(v)] = struct{}{}
		}
	}
	if len(values) == 0 {
		d.problem(n.pointer, "want one value at least")
	}
	if old := f.constraints.enum; old != nil {
		for key := range set {
			if _, ok := old[key]; !ok {
				d.problem(n.pointer, "the enum has a value that is none of the categories")
			}
		}
	}
	f.constraints.enum, f.constraints.enumText = set, string(n.raw)
}

func (d *document) constraints(f *field, n node) {
	for name, n := range d.members(n) {
		switch name {
		case "required":
			f.constraints.required, _ = d.boolean(n)
		case "unique":
			if unique, ok := d.boolean(n); ok && unique {
				d.warning(n.pointer, "that values are unique is not checked: a replay sees one feature at a time")
			}
		case "minimum":
			d.bound(f, n, bound{side: -1})
		case "exclusiveMinimum":
			d.bound(f, n, bound{side: -1, exclusive: true})
		case "maximum":
			d.bound(f, n, bound{side: 1})
		case "exclusiveMaximum":
			d.bound(f, n, bound{side: 1, exclusive: true})
		case "minLength", "maxLength":
			if f.typ != typeString && f.typ != typeArray && f.typ != typeObject {
				d.problem(n.pointer, "a field of type %s has no length", f.typ)
				break
			}
			length, ok := d.integer(n)
			if ok && name == "minLength" {
				f.constraints.minLength = length
			} else if ok {
				f.constraints.maxLength = length
			}
		case "pattern":
			d.pattern(f, n)
		case "enum":
			var values []node
			for _, element := range d.elements(n) {
				values = append(values, element)
			}
			d.enum(f, n, values)
		case "jsonSchema":
			d.problem(n.pointer, "jsonSchema is not supported")
		default:
			d.custom(n, name, constraintMembers)
			d.warning(n.pointer, "there is no such constraint; it is not checked")
		}
	}
	c := &f.constraints
	if c.minLength >= 0 && c.maxLength >= 0 && c.minLength > c.maxLength {
		d.problem(n.pointer, "minLength is greater than maxLength")
	}
	for _, lower := range c.bounds {
		for _, upper := range c.bounds {
			if lower.side >= upper.side {
				continue
			}
			order := lower.number.compare(upper.number)
			if !f.typ.numeric() {
				order = lower.moment.time.Compare(upper.moment.time)
			}
			if order > 0 || order == 0 && (lower.exclusive || upper.exclusive) {
				d.problem(n.pointer, "no value is over %s and under %s", lower.text, upper.text)
			}
		}
	}
}

// bound reads the value of a bound.
func (d *document) bound(f *field, n node, b bound) {
	if !f.typ.ordered() {
		d.problem(n.pointer, "values of type %s have no order", f.typ)
		return
	}
	v, message := f.coerce(n.raw)
	if message != "" || v.null {
		if message == "" {
			message = "it means null"
		}
		d.problem(n.pointer, "the value is not of the field's type: %s", message)
		return
	}
	b.moment, b.text = v.moment, string(v.raw)
	if f.typ.numeric() {
		b.number = parseDecimal(v.raw)
		if len(v.raw) <= 18 && isPlainInteger(v.raw) {
			b.whole = plainInteger(v.raw)
		}
	}
	f.constraints.bounds = append(f.constraints.bounds, b)
}

// pattern compiles a regular expression of XML Schema, as far as RE2 has it. A value must
// match it from end to end (XML Schema part 2, appendix F); ^ and $, which people write
// all the same, do no harm.
func (d *document) pattern(f *field, n node) {
	text, ok := d.text(n)
	if !ok {
		return
	}
	if f.typ != typeString {
		d.problem(n.pointer, "a pattern is for a field of type string, not %s", f.typ)
		return
	}
	if at := subtraction(text); at >= 0 {
		d.problem(n.pointer, "character class subtraction (%q) is not supported; list the characters", text[at:])
		return
	}
	// Alone first: it says what is wrong in terms of the pattern itself, and "a)(b" is no pattern.
	_, err := regexp.Compile(text)
	var whole *regexp.Regexp
	if err == nil {
		whole, err = regexp.Compile(`\A(?:` + text + `)\z`)
	}
	if err != nil {
		d.problem(n.pointer, "the pattern is not supported: %s (RE2 syntax: no look-around, no back references)",
			strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		return
	}
	f.constraints.pattern, f.constraints.patternText = whole, text
}

// subtraction finds [a-z-[aeiou]], which RE2 would read as something else.
func subtraction(pattern string) int {
	class := false
	for i := 0; i < len(pattern); i++ {
		switch {
		case pattern[i] == '\\':
			i++
		case pattern[i] == '[' && class && pattern[i-1] == '-':
			return i - 1
		case pattern[i] == '[':
			class = true
		case pattern[i] == ']':
			class = false
		}
	}
	return -1
}
