package crs

import (
	"bytes"
	"encoding/json"
	"strings"

	"geodlq/shared/deadletter"
)

// ResolveMember reads the "crs" member of a GeoJSON object (GeoJSON 2008, section
// 3), as raw JSON. It returns the name that was found in it, verbatim, and the code
// that name resolves to; the name also comes with an unknown_crs error. Beside the
// forms of 2008 (type name, and type link, which is read but never followed) it
// takes what software writes in their place: a plain string or number, PROJJSON,
// and an ESRI spatialReference. JSON null is missing_crs.
func ResolveMember(crs []byte) (name string, code int, err error) {
	text := strings.TrimSpace(string(crs))
	if text == "" || text == "null" {
		return "", 0, deadletter.Faultf(deadletter.ReasonMissingCRS, "", "the crs member is null")
	}
	name = nameIn([]byte(text))
	code, err = resolver{verbatim: name}.resolve(name)
	return name, code, err
}

// json resolves a CRS given as a JSON value.
func (r resolver) json(raw []byte) (int, error) {
	name := nameIn(raw)
	if name == r.verbatim || name == string(raw) {
		return 0, r.unknown("it is JSON, but no CRS that could be read from it")
	}
	return resolver{verbatim: name}.resolve(name)
}

// nameIn finds the name in a JSON value; the text of the value itself where there is
// none.
func nameIn(raw []byte) string {
	verbatim := string(bytes.TrimSpace(raw))
	switch {
	case verbatim == "":
		return ""
	case verbatim[0] == '"':
		return scalar(raw, verbatim)
	case verbatim[0] != '{':
		return verbatim // a number; anything else resolves to nothing
	}
	var o map[string]json.RawMessage
	if json.Unmarshal(raw, &o) != nil {
		return verbatim
	}
	// ESRI spatialReference. wkid may be an old code of Esri's own; latestWkid is the
	// current one.
	for _, key := range []string{"latestWkid", "wkid"} {
		if v, ok := o[key]; ok {
			return scalar(v, verbatim)
		}
	}
	if wkt, ok := o["wkt"]; ok && len(o) == 1 {
		return scalar(wkt, verbatim)
	}
	var kind string
	_ = json.Unmarshal(o["type"], &kind) // not a string: no kind
	var p map[string]json.RawMessage
	if json.Unmarshal(o["properties"], &p) == nil && p != nil {
		for _, key := range []string{"name", "href", "code", "urn"} {
			if v, ok := p[key]; ok {
				return scalar(v, verbatim)
			}
		}
	}
	if strings.HasSuffix(kind, "CRS") {
		if id := projJSON(o, kind); id != "" {
			return id
		}
	}
	return verbatim
}

// scalar returns the text of a JSON string or number.
func scalar(raw json.RawMessage, otherwise string) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var n json.Number
	if json.Unmarshal(raw, &n) == nil && n != "" {
		return n.String()
	}
	if string(bytes.TrimSpace(raw)) == "null" {
		return ""
	}
	return otherwise
}

// projJSON returns authority:code of the identifier at the root of a PROJJSON CRS;
// of the first component of a compound CRS that has none.
func projJSON(o map[string]json.RawMessage, kind string) string {
	type identifier struct {
		Authority string          `json:"authority"`
		Code      json.RawMessage `json:"code"`
	}
	var ids []identifier
	var id identifier
	if raw, ok := o["id"]; ok && json.Unmarshal(raw, &id) == nil {
		ids = append(ids, id)
	} else if raw, ok := o["ids"]; ok {
		_ = json.Unmarshal(raw, &ids) // malformed: no identifier
	}
	for _, id := range ids {
		if code := scalar(id.Code, ""); id.Authority != "" && code != "" {
			return id.Authority + ":" + code
		}
	}
	if kind != "CompoundCRS" {
		return ""
	}
	var components []map[string]json.RawMessage
	if json.Unmarshal(o["components"], &components) != nil || len(components) == 0 {
		return ""
	}
	return projJSON(components[0], "")
}
