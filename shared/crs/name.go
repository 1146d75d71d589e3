package crs

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"geodlq/shared/deadletter"
)

// Resolve turns the name of a CRS, in any spelling that pipelines write, into the
// code of one horizontal CRS, numbered as in PostGIS's spatial_ref_sys:
//
//   - EPSG:26910, epsg:26910, EPSG::26910, ESRI:102100, [EPSG:26910], a bare 26910;
//   - urn:ogc:def:crs:EPSG::26910, with or without a version, urn:x-ogc, compound;
//   - http(s)://www.opengis.net/def/crs/EPSG/0/26910, …/gml/srs/epsg.xml#26910,
//     links to epsg.io and spatialreference.org;
//   - CRS84, OGC:CRS84 and its URN and URI, CRS:84, WGS84;
//   - +init=epsg:26910;
//   - compound and three-dimensional codes (EPSG:4326+5773, EPSG:4979): the
//     horizontal part;
//   - WKT 1 and 2 and PROJJSON, by the identifier at their root alone: one further
//     down belongs to a part, such as the base CRS;
//   - a GeoJSON 2008 "crs" object and an ESRI spatialReference.
//
// The errors are Faults: missing_crs for an empty name and for 0 and -1, which
// software writes for "none"; unknown_crs, with the name in the message, for
// everything else that names no CRS. A number that EPSG and ESRI do not define is
// taken as it is: spatial_ref_sys may have it.
func Resolve(name string) (code int, err error) {
	r := resolver{verbatim: name}
	return r.resolve(name)
}

// resolver keeps the name as it came, for messages.
type resolver struct{ verbatim string }

func (r resolver) unknown(why string, args ...any) error {
	return deadletter.Faultf(deadletter.ReasonUnknownCRS, "", "%s names no CRS known here: %s", shorten(r.verbatim), fmt.Sprintf(why, args...))
}

func (r resolver) missing() error {
	if strings.TrimSpace(r.verbatim) == "" {
		return deadletter.Faultf(deadletter.ReasonMissingCRS, "", "the CRS is empty")
	}
	return deadletter.Faultf(deadletter.ReasonMissingCRS, "", "%s stands for no CRS", shorten(r.verbatim))
}

// shorten quotes a name for a message; WKT can be long.
func shorten(name string) string {
	const most = 120
	if n := []rune(name); len(n) > most {
		return strconv.Quote(string(n[:most]) + "…")
	}
	return strconv.Quote(name)
}

func (r resolver) resolve(name string) (int, error) {
	s := strings.TrimSpace(name)
	switch {
	case s == "":
		return 0, r.missing()
	case s[0] == '{' || s[0] == '"':
		return r.json([]byte(s))
	case looksLikeWKT(s):
		return r.wkt(s)
	}
	// Safe CURIEs of the OGC APIs: [EPSG:26910].
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			s = strings.TrimSpace(inner)
		}
	}
	lower := strings.ToLower(s)
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return r.number("", s)
	}
	if code, ok := wellKnown(lower); ok {
		return code, nil
	}
	for _, scheme := range []string{"http://", "https://"} {
		if rest, ok := strings.CutPrefix(lower, scheme); ok {
			return r.link(rest, s)
		}
	}
	switch {
	case strings.HasPrefix(lower, "epsg.io/"), strings.HasPrefix(lower, "www.opengis.net/"), strings.HasPrefix(lower, "spatialreference.org/"):
		return r.link(lower, s)
	case strings.HasPrefix(lower, "urn:"):
		return r.urn(lower)
	}
	for _, prefix := range []string{"+init=", "init="} {
		if rest, ok := strings.CutPrefix(lower, prefix); ok {
			// Further parameters of an init string would change the definition.
			return r.authority(strings.TrimSuffix(rest, " +type=crs"))
		}
	}
	return r.authority(lower)
}

// wellKnown are names without an authority's code. Longitude comes first in all of
// them, as it does here for every code.
func wellKnown(lower string) (int, bool) {
	switch strings.NewReplacer(" ", "", "_", "").Replace(lower) {
	case "crs84", "crs:84", "ogc:crs84", "ogc:84", "crs84h", "ogc:crs84h", "wgs84", "wgs-84":
		return wgs84Code, true
	case "crs83", "crs:83", "ogc:crs83":
		return 4269, true
	case "crs27", "crs:27", "ogc:crs27":
		return 4267, true
	}
	return 0, false
}

// authority reads authority:code, authority::code and authority:version:code, and
// the compound form in which + joins two of them.
func (r resolver) authority(s string) (int, error) {
	horizontal, vertical, compound := strings.Cut(s, "+")
	if compound {
		// The vertical part must be a code as well: what follows a plus sign that is
		// no code could be anything.
		last := vertical[strings.LastIndexByte(vertical, ':')+1:]
		if n, err := strconv.Atoi(last); err != nil || n <= 0 {
			return 0, r.unknown("%q after the plus sign is no code of a vertical CRS", vertical)
		}
		if code, ok := wellKnown(horizontal); ok {
			return code, nil
		}
	}
	f := strings.Split(horizontal, ":")
	for i := range f {
		f[i] = strings.TrimSpace(f[i])
	}
	switch {
	case len(f) == 2:
		return r.number(f[0], f[1])
	case len(f) == 3 && isVersion(f[1]):
		return r.number(f[0], f[2])
	case len(f) == 1 && compound:
		return r.number("", f[0])
	case len(f) == 1:
		return 0, r.unknown("name it like EPSG:26910")
	}
	return 0, r.unknown("it is not of the form authority:code")
}

// number resolves a code of an authority; without one it is an SRID.
func (r resolver) number(authority, digits string) (int, error) {
	if authority == "crs" || authority == "ogc" {
		if code, ok := wellKnown("ogc:" + digits); ok {
			return code, nil
		}
		if code, ok := wellKnown("crs:" + digits); ok {
			return code, nil
		}
		return 0, r.unknown("OGC defines CRS84, CRS83 and CRS27")
	}
	if authority != "" && authority != "epsg" && authority != "esri" {
		return 0, r.unknown("the authority %q is neither EPSG nor ESRI", authority)
	}
	// Numbers come through JSON and data frames as 26910.0.
	whole, fraction, _ := strings.Cut(digits, ".")
	if strings.Trim(fraction, "0") != "" {
		return 0, r.unknown("a code is a whole number")
	}
	code, err := strconv.Atoi(whole)
	if err != nil {
		return 0, r.unknown("%q is no code", digits)
	}
	if code == 0 || code == -1 {
		return 0, r.missing()
	}
	return r.code(authority, code)
}

// code checks that an authority defines a code and follows aliases.
func (r resolver) code(authority string, code int) (int, error) {
	if code < 0 || code > maxSRID {
		return 0, r.unknown("codes are 1 to %d", maxSRID)
	}
	if to, ok := aliasOf(code); ok {
		return to, nil
	}
	e, listed := lookup(code)
	if listed && authority == "epsg" && e.authority != "EPSG" {
		return 0, r.unknown("EPSG has no such code; ESRI:%d (%s) is a CRS", code, e.name)
	}
	s, err := systemOf(code)
	if err != nil {
		return 0, r.unknown("%v", err)
	}
	return s.info.Code, nil
}

// urn reads urn:ogc:def:crs:… and its relatives, in lower case.
func (r resolver) urn(s string) (int, error) {
	var rest string
	for _, prefix := range []string{"urn:ogc:def:crs", "urn:x-ogc:def:crs", "urn:opengis:def:crs"} {
		if after, ok := strings.CutPrefix(s, prefix); ok {
			rest = after
			break
		}
	}
	switch {
	case strings.HasPrefix(rest, ":"):
		return r.urnCode(rest[1:])
	case strings.HasPrefix(rest, ","):
		// urn:ogc:def:crs,crs:EPSG::26910,crs:EPSG::5703 (OGC 07-092r3, section 7.5.4)
		first, _, _ := strings.Cut(rest[1:], ",") // the horizontal CRS comes first
		if part, ok := strings.CutPrefix(strings.TrimSpace(first), "crs:"); ok {
			return r.urnCode(part)
		}
	}
	return 0, r.unknown("it is not of the form urn:ogc:def:crs:EPSG::26910")
}

// urnCode reads authority:version:code, where the version may be empty or absent.
func (r resolver) urnCode(s string) (int, error) {
	f := strings.Split(s, ":")
	switch {
	case len(f) == 3 && (f[1] == "" || isVersion(f[1])):
		return r.number(f[0], f[2])
	case len(f) == 2:
		return r.number(f[0], f[1])
	}
	return 0, r.unknown("it is not of the form urn:ogc:def:crs:EPSG::26910")
}

func isVersion(s string) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && c != '.' {
			return false
		}
	}
	return true
}

// link reads web addresses that name a CRS. Nothing is ever fetched. lower is the
// address in lower case without its scheme.
func (r resolver) link(lower, original string) (int, error) {
	lower = strings.TrimPrefix(lower, "www.")
	host, path, _ := strings.Cut(lower, "/")
	path = strings.TrimSuffix(path, "/")
	switch host {
	case "opengis.net":
		if code, ok := strings.CutPrefix(path, "gml/srs/epsg.xml#"); ok {
			return r.number("epsg", code)
		}
		if q, ok := strings.CutPrefix(path, "def/crs-compound?"); ok {
			values, err := url.ParseQuery(q)
			if err != nil {
				return 0, r.unknown("its query cannot be read: %v", err)
			}
			part := strings.TrimPrefix(strings.TrimPrefix(values.Get("1"), "https://"), "http://")
			if strings.Contains(part, "crs-compound") {
				return 0, r.unknown("its first component is compound itself")
			}
			return r.link(part, original)
		}
		if f := strings.Split(path, "/"); len(f) == 5 && f[0] == "def" && f[1] == "crs" && isVersion(f[3]) {
			return r.number(f[2], f[4])
		}
	case "epsg.io":
		// Also the downloads: epsg.io/26910.wkt, /26910.proj4, …
		code, _, _ := strings.Cut(path, ".")
		return r.number("epsg", code)
	case "spatialreference.org":
		if f := strings.Split(path, "/"); len(f) >= 3 && f[0] == "ref" && (f[1] == "epsg" || f[1] == "esri") {
			return r.number(f[1], f[2])
		}
	}
	return 0, r.unknown("this address is not one that names a CRS (like http://www.opengis.net/def/crs/EPSG/0/26910)")
}
