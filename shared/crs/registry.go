package crs

import (
	_ "embed"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/paulmach/orb"

	"geodlq/shared/crs/internal/projection"
)

//go:generate go run ./generate -out .

// registryTable has a line for every CRS of EPSG and ESRI in PROJ's database, by
// code; computedTable the parameters of those that this package computes. Both are
// searched as text: nothing is parsed before somebody asks for a code, so that a
// cold start pays for the codes it meets alone.
var (
	//go:embed registry.tsv
	registryTable string
	//go:embed computed.tsv
	computedTable string
)

// Kind is what sort of CRS a code names.
type Kind string

// The kinds. Only geographic and projected CRSs have positions of two dimensions.
const (
	KindGeographic Kind = "geographic"
	KindProjected  Kind = "projected"
	KindGeocentric Kind = "geocentric"
	KindVertical   Kind = "vertical"
	KindOtherBody  Kind = "not of the Earth"
	// KindUnlisted is a code that neither EPSG nor ESRI defines in the release this
	// package was made from; a database may still have it in spatial_ref_sys.
	KindUnlisted Kind = "unlisted"
)

// Service is how positions in a CRS come to WGS 84 and back.
type Service string

const (
	// ServiceComputed: this package has the projection, and no datum shift is due.
	ServiceComputed Service = "computed"
	// ServicePostGIS: ST_Transform, anywhere near the area of use.
	ServicePostGIS Service = "postgis"
	// ServiceLimited: ST_Transform, within [Info.Served] only; elsewhere PROJ
	// without datum grids would give a ballpark answer.
	ServiceLimited Service = "postgis, limited"
	// ServiceBallpark: refused unless allowed, because PROJ without datum grids
	// gives a ballpark answer, or one of tens of metres, in most of the area of use.
	ServiceBallpark Service = "ballpark"
	// ServiceNone: the code has no positions of two dimensions on the Earth.
	ServiceNone Service = "none"
)

// Info describes a CRS.
type Info struct {
	Code      int
	Authority string // EPSG or ESRI; empty when unlisted
	Name      string
	Kind      Kind
	Service   Service
	// Base is the code of the geographic CRS under a projected one, the code itself
	// for a geographic one.
	Base int
	// Unit is one unit of the coordinates: in metres, for a geographic CRS in degrees.
	// 0 when nothing is known.
	Unit float64
	// Accuracy is what EPSG publishes for the way from the datum to WGS 84, in
	// metres, for the middle of the area of use; 0 when it publishes nothing.
	Accuracy float64
	// Area is the area of use in degrees. It crosses the antimeridian when its
	// west is greater than its east. HasArea is false where none is published.
	Area    orb.Bound
	HasArea bool
	// Extent is where coordinates are accepted, in the unit of the CRS: the area of
	// use and a generous margin. HasExtent is false where nothing is known.
	Extent    orb.Bound
	HasExtent bool
	// Served are the extents that ServiceLimited stays within, in the unit of the CRS.
	Served []orb.Bound
}

// Describe returns what is known about a code. The code of a compound or
// three-dimensional CRS, and an alias of Web Mercator, is described as the
// horizontal CRS that its positions are in, which is Info.Code. Codes that can
// never be an SRID are an unknown_crs fault.
func Describe(code int) (Info, error) {
	s, err := systemOf(code)
	if err != nil {
		return Info{}, err
	}
	return s.info, nil
}

// Computed yields what this package computes itself, by code.
func Computed() iter.Seq[Info] {
	return func(yield func(Info) bool) {
		for line := range lines(computedTable) {
			code, _, _ := strings.Cut(line, "\t")
			n, err := strconv.Atoi(code)
			if err != nil {
				panic("crs: computed.tsv is damaged: " + err.Error())
			}
			s, err := systemOf(n)
			if err != nil {
				panic("crs: computed.tsv is damaged: " + err.Error())
			}
			if !yield(s.info) {
				return
			}
		}
	}
}

// aliases are codes that name Web Mercator without being EPSG's.
func aliasOf(code int) (int, bool) {
	switch code {
	case 102100, 900913, 3785:
		return webMercatorCode, true
	}
	return 0, false
}

const (
	webMercatorCode = 3857
	wgs84Code       = 4326
	maxSRID         = 998999 // largest SRID a user may add to spatial_ref_sys
)

// entry is a line of the registry, split but not interpreted.
type entry struct {
	authority, kind, class, accuracy, unit, area, extent, served, name string
	base                                                               int
}

// lookup finds a code in the registry.
func lookup(code int) (entry, bool) {
	line, ok := find(registryTable, code)
	if !ok {
		return entry{}, false
	}
	f := strings.Split(line, "\t")
	if len(f) != 11 {
		panic(fmt.Sprintf("crs: registry.tsv is damaged at code %d", code))
	}
	e := entry{authority: f[1], kind: f[2], class: f[4], accuracy: f[5], unit: f[6], area: f[7], extent: f[8], served: f[9], name: f[10]}
	e.base, _ = strconv.Atoi(f[3]) // empty for most kinds
	return e, true
}

// parametersOf returns ellipsoid and projection of a computed code; the method is 0
// for a geographic CRS.
func parametersOf(code int) (a, fi float64, p projection.Parameters, ok bool) {
	line, ok := find(computedTable, code)
	if !ok {
		return 0, 0, p, false
	}
	f := strings.Split(line, "\t")
	if len(f) != 3 && len(f) != 12 {
		panic(fmt.Sprintf("crs: computed.tsv is damaged at code %d", code))
	}
	a, fi = number(f[1]), number(f[2])
	if len(f) == 12 {
		p = projection.Parameters{
			Method:   projection.Method(number(f[3])),
			Latitude: number(f[4]), Longitude: number(f[5]), Parallel1: number(f[6]), Parallel2: number(f[7]),
			Scale: number(f[8]), East: number(f[9]), North: number(f[10]), Unit: number(f[11]),
		}
	}
	return a, fi, p, true
}

// find returns the line of a table that starts with the code, by bisection: lines
// are sorted by code.
func find(table string, code int) (string, bool) {
	lo, hi := 0, len(table)
	for lo < hi {
		mid := (lo + hi) / 2
		// Back to the start of the line that mid falls into.
		start := strings.LastIndexByte(table[lo:mid], '\n') + 1 + lo
		line, _, _ := strings.Cut(table[start:], "\n")
		first, _, _ := strings.Cut(line, "\t")
		n, err := strconv.Atoi(first)
		switch {
		case strings.HasPrefix(line, "#"):
			n = -1
		case err != nil:
			panic("crs: embedded table is damaged: " + err.Error())
		}
		switch {
		case n == code:
			return line, true
		case n < code:
			lo = start + len(line) + 1
		default:
			hi = start
		}
	}
	return "", false
}

func lines(table string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(table) {
			if !strings.HasPrefix(line, "#") && !yield(strings.TrimSuffix(line, "\n")) {
				return
			}
		}
	}
}

func number(s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		panic("crs: embedded table is damaged: " + err.Error())
	}
	return v
}

// bound reads "west south east north".
func bound(s string) orb.Bound {
	f := strings.Fields(s)
	if len(f) != 4 {
		panic(fmt.Sprintf("crs: registry.tsv is damaged: %q is no box", s))
	}
	return orb.Bound{Min: orb.Point{number(f[0]), number(f[1])}, Max: orb.Point{number(f[2]), number(f[3])}}
}
