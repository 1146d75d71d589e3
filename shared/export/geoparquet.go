package export

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/paulmach/orb"

	"geodlq/shared/queue"
)

// GeoParquet writes features of one CRS as GeoParquet 1.1 (geoparquet.org, version
// 1.1.0): their source geometries in their source CRS, as well-known binary with x
// before y. Several may be written at once.
type GeoParquet struct {
	w     *columnWriter
	epsg  int
	crs   json.RawMessage // nil: left out, which is OGC:CRS84
	bound *orb.Bound
	types []string
}

const (
	colID = iota
	colDLQID
	colFeatureID
	colBatchID
	colStatus
	colReason
	colFailedRule
	colError
	colFingerprint
	colSourceCRS
	colEPSG
	colAttempts
	colRedrives
	colContractVersion
	colFirstSeen
	colLastSeen
	colFeatureGeoJSON
	colPayloadRaw
	colGeometry
)

var columns = []column{
	colID:              {name: "id", kind: kindInt},
	colDLQID:           {name: "dlq_id"},
	colFeatureID:       {name: "feature_id"},
	colBatchID:         {name: "batch_id", repeats: true},
	colStatus:          {name: "status", repeats: true},
	colReason:          {name: "reason", repeats: true},
	colFailedRule:      {name: "failed_rule", repeats: true},
	colError:           {name: "error"},
	colFingerprint:     {name: "fingerprint", repeats: true},
	colSourceCRS:       {name: "source_crs", repeats: true},
	colEPSG:            {name: "epsg", kind: kindInt},
	colAttempts:        {name: "attempts", kind: kindInt},
	colRedrives:        {name: "redrives", kind: kindInt},
	colContractVersion: {name: "contract_version", repeats: true},
	colFirstSeen:       {name: "first_seen", kind: kindTime},
	colLastSeen:        {name: "last_seen", kind: kindTime},
	colFeatureGeoJSON:  {name: "feature_geojson"},
	colPayloadRaw:      {name: "payload_raw", kind: kindBinary},
	colGeometry:        {name: "geometry", kind: kindBinary},
}

// NewGeoParquet begins a file of features in the CRS with the EPSG code, or, for 0, of
// features whose CRS is not known ("crs": null). [GeoParquet.Close] ends it. A code
// without a definition (see [ProjJSON]) is written as not known too.
func NewGeoParquet(w io.Writer, epsg int) (*GeoParquet, error) {
	g := &GeoParquet{epsg: epsg, crs: json.RawMessage("null")}
	switch {
	case epsg == lonLat:
		g.crs = nil
	case epsg != 0:
		definition, ok, err := ProjJSON(epsg)
		if err != nil {
			return nil, err
		}
		if ok {
			g.crs = definition
		}
	}
	var err error
	if g.w, err = newColumnWriter(w, "dead_letter", columns); err != nil {
		return nil, fmt.Errorf("begin a GeoParquet file: %w", err)
	}
	return g, nil
}

// Buffered is how many bytes of values are held back for the open row group.
func (g *GeoParquet) Buffered() int64 { return int64(g.w.size) }

// Write appends a feature. Its WKB must be in the file's CRS; what a reader of
// GeoParquet could not take (no simple feature, NaN) is written as null.
func (g *GeoParquet) Write(f *Feature) error {
	w := g.w
	w.int(colID, f.ID)
	w.text(colDLQID, f.DLQID)
	w.text(colFeatureID, f.FeatureID)
	w.text(colBatchID, f.BatchID)
	w.text(colStatus, f.Status)
	w.text(colReason, f.Reason)
	w.text(colFailedRule, f.FailedRule)
	w.text(colError, f.Error)
	w.text(colFingerprint, f.Fingerprint)
	w.text(colSourceCRS, f.SourceCRS)
	if f.EPSG != 0 {
		w.int(colEPSG, int64(f.EPSG))
	}
	w.int(colAttempts, int64(f.Attempts))
	w.int(colRedrives, int64(f.Redrives))
	w.text(colContractVersion, f.ContractVersion)
	w.time(colFirstSeen, f.FirstSeen)
	w.time(colLastSeen, f.LastSeen)
	if len(f.Payload) > 0 {
		if utf8.Valid(f.Payload) {
			w.bytes(colFeatureGeoJSON, f.Payload)
		} else {
			w.bytes(colPayloadRaw, f.Payload)
		}
	}
	if f.WKB != nil {
		if geometry, err := queue.ParseWKB(f.WKB); err == nil && finite(geometry.Bound()) {
			w.bytes(colGeometry, f.WKB)
			g.describe(geometry)
		}
	}
	if err := w.endRow(); err != nil {
		return fmt.Errorf("write row %d as GeoParquet: %w", f.ID, err)
	}
	return nil
}

func finite(b orb.Bound) bool {
	for _, v := range []float64{b.Min[0], b.Min[1], b.Max[0], b.Max[1]} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}

func (g *GeoParquet) describe(geometry orb.Geometry) {
	if name := geometry.GeoJSONType(); !slices.Contains(g.types, name) {
		g.types = append(g.types, name)
	}
	b := geometry.Bound()
	if b.IsEmpty() {
		return // GEOMETRYCOLLECTION EMPTY has no place
	}
	if g.bound == nil {
		g.bound = &b
	} else {
		*g.bound = g.bound.Union(b)
	}
}

// geoColumn is the metadata of the geometry column.
type geoColumn struct {
	Encoding string          `json:"encoding"`
	Types    []string        `json:"geometry_types"`
	CRS      json.RawMessage `json:"crs,omitempty"`
	BBox     []float64       `json:"bbox,omitempty"`
}

// Close writes the metadata and ends the file.
func (g *GeoParquet) Close() error {
	slices.Sort(g.types)
	c := geoColumn{Encoding: "WKB", Types: append([]string{}, g.types...), CRS: g.crs}
	if g.bound != nil {
		c.BBox = []float64{g.bound.Min[0], g.bound.Min[1], g.bound.Max[0], g.bound.Max[1]}
	}
	geo, err := json.Marshal(struct {
		Version string               `json:"version"`
		Primary string               `json:"primary_column"`
		Columns map[string]geoColumn `json:"columns"`
	}{"1.1.0", "geometry", map[string]geoColumn{"geometry": c}})
	if err != nil {
		return fmt.Errorf("describe the GeoParquet file: %w", err)
	}
	if err := g.w.close(map[string]string{"geo": string(geo)}); err != nil {
		return fmt.Errorf("end the GeoParquet file: %w", err)
	}
	return nil
}
