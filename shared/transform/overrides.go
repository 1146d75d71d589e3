package transform

import (
	"fmt"
	"strings"

	"github.com/paulmach/orb"

	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
	"geodlq/shared/geojson"
	"geodlq/shared/jsonscan"
)

// Overrides is what an operator changes on one dead letter before it is replayed, without
// touching its payload. It is applied after the overrides of the contract and before coercion, in the order
// rename, set. As JSON:
//
//	{
//	  "source_crs": "EPSG:26910",
//	  "rename": {"PARCELID": "parcel_id"},
//	  "set": {"built_year": 1987, "note": null},
//	  "geometry": {"type": "Point", "coordinates": [551234.5, 5190000.25]}
//	}
//
// Every member may be left out. The coordinates of geometry are in the source CRS.
type Overrides struct {
	// SourceCRS is the CRS of the source geometry, in place of what record and feature
	// say; "" changes nothing.
	SourceCRS string
	// Rename gives attributes another name, old to new.
	Rename map[string]string
	// Set gives attributes a value, present or not, in the order of the document. It is
	// coerced as if it stood in the feature.
	Set []geojson.Property
	// Geometry replaces the source geometry; nil keeps it.
	Geometry orb.Geometry
}

// ParseOverrides reads overrides. The error is a [*DocumentError] with every problem.
func ParseOverrides(text []byte) (Overrides, error) {
	var o Overrides
	var d document
	root, ok := d.root(text)
	if !ok {
		return Overrides{}, &DocumentError{Document: "the override", Problems: d.problems}
	}
	known := []string{"source_crs", "rename", "set", "geometry"}
	for name, n := range d.members(root) {
		switch name {
		case "source_crs":
			o.SourceCRS = d.crsName(n)
		case "rename":
			o.Rename = d.rename(n)
		case "set":
			for attribute, value := range d.members(n) {
				if d.storable(attribute, value) {
					o.Set = append(o.Set, geojson.Property{Name: attribute, Raw: value.raw})
				}
			}
		case "geometry":
			feature := append(append([]byte(`{"type":"Feature","geometry":`), n.raw...), '}')
			f, err := geojson.Decode(feature, geojson.Limits{})
			switch {
			case err != nil:
				d.problem(n.pointer, "%s", faultDetail(err))
			case f.GeometryCRS != nil:
				d.problem(n.child("crs"), "say source_crs instead")
			default:
				o.Geometry = f.Geometry
			}
		default:
			d.unknown(n, name, known)
		}
	}
	if len(d.problems) > 0 {
		return Overrides{}, &DocumentError{Document: "the override", Problems: d.problems}
	}
	return o, nil
}

func faultDetail(err error) string {
	if f, ok := deadletter.AsFault(err); ok {
		return string(f.Reason) + ": " + f.Detail
	}
	return err.Error()
}

// crsName reads the name of a CRS that resolves.
func (d *document) crsName(n node) string {
	name, ok := d.text(n)
	if !ok {
		return ""
	}
	if _, err := crs.Resolve(name); err != nil {
		d.problem(n.pointer, "%s", faultDetail(err))
	}
	return name
}

func (d *document) rename(n node) map[string]string {
	out := make(map[string]string)
	from := make(map[string]string)
	for old, value := range d.members(n) {
		name, ok := d.text(value)
		switch {
		case !ok:
		case name == "":
			d.problem(value.pointer, "an attribute needs a name")
		case from[name] != "":
			d.problem(value.pointer, "%q and %q would both be %q", from[name], old, name)
		default:
			out[old], from[name] = name, old
		}
	}
	return out
}

// storable checks a value that may reach the target as it is.
func (d *document) storable(attribute string, n node) bool {
	fault := checkStorableName(attribute, attribute)
	if fault == nil {
		fault = checkStorable(attribute, n.raw)
	}
	if fault == nil && jsonscan.Valid(n.raw, maxNesting) != nil {
		fault = &deadletter.Fault{Detail: fmt.Sprintf("more than %d arrays and objects inside each other", maxNesting)}
	}
	if fault != nil {
		d.problem(n.pointer, "%s", fault.Detail)
	}
	return fault == nil
}

// override is one of the contract's: for the dead letters that match, it says what to change.
type override struct {
	// Globs with * for any text; "" matches anything.
	batch, feature, rule string
	sourceCRS            *string // glob of the CRS the record names

	crs    string
	rename map[string]string
	values map[string]map[string][]byte // by attribute, by text, the value instead
}

func (d *document) override(n node) (override, bool) {
	before := len(d.problems)
	var o override
	matches, changes := 0, 0
	for name, n := range d.members(n) {
		switch name {
		case "match":
			for name, n := range d.members(n) {
				glob, ok := d.text(n)
				if !ok {
					continue
				}
				matches++
				switch name {
				case "batchId":
					o.batch = glob
				case "featureId":
					o.feature = glob
				case "failedRule":
					o.rule = glob
				case "sourceCrs":
					o.sourceCRS = &glob
				default:
					d.unknown(n, name, matchMembers)
				}
				if glob == "" && name != "sourceCrs" {
					d.problem(n.pointer, `want a text, or "*" for any`)
				}
			}
		case "sourceCrs":
			o.crs = d.crsName(n)
			changes++
		case "rename":
			o.rename = d.rename(n)
			changes++
		case "values":
			o.values = make(map[string]map[string][]byte)
			for attribute, n := range d.members(n) {
				by := make(map[string][]byte)
				for text, value := range d.members(n) {
					if d.storable(attribute, value) {
						by[text] = value.raw
					}
				}
				o.values[attribute] = by
			}
			changes++
		case "description":
			d.text(n)
		default:
			d.unknown(n, name, overrideMembers)
		}
	}
	if n.kind() == jsonscan.KindObject && len(d.problems) == before {
		if matches == 0 {
			d.problem(n.pointer, `match names nothing; for every dead letter write {"batchId": "*"}`)
		}
		if changes == 0 {
			d.problem(n.pointer, "the override changes nothing; give sourceCrs, rename or values")
		}
	}
	return o, len(d.problems) == before
}

func (o *override) matches(in *Input) bool {
	if o.sourceCRS != nil {
		name := ""
		if in.SourceCRS != nil {
			name = *in.SourceCRS
		}
		if !glob(*o.sourceCRS, name) {
			return false
		}
	}
	return (o.batch == "" || glob(o.batch, in.BatchID)) && (o.feature == "" || glob(o.feature, in.FeatureID)) && (o.rule == "" || glob(o.rule, in.FailedRule))
}

// glob reports whether s is what the pattern says, * standing for any text. It never looks back
// further than the last star, so it takes no exponential time.
func glob(pattern, s string) bool {
	for {
		head, rest, star := strings.Cut(pattern, "*")
		if !strings.HasPrefix(s, head) {
			return false
		}
		s = s[len(head):]
		if !star {
			return s == ""
		}
		for strings.HasPrefix(rest, "*") {
			rest = rest[1:]
		}
		next, _, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(s, next)
		}
		at := strings.Index(s, next)
		if at < 0 {
			return false
		}
		s, pattern = s[at:], rest
	}
}
