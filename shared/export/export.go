// Package export writes dead letters as files that people open: a GeoJSON text
// sequence for QGIS and ogr2ogr, GeoParquet for DuckDB and QGIS, and an HTML page with
// a map for a browser. The writers know nothing of where the features come from or
// where the files go.
package export

import (
	"encoding/json"
	"time"
)

// Feature is one dead letter with all that an export says of it.
type Feature struct {
	ID              int64
	DLQID           string
	FeatureID       string
	BatchID         string
	Status          string
	Reason          string
	FailedRule      string
	Error           string
	Fingerprint     string
	SourceCRS       string // verbatim
	EPSG            int    // resolved, 0 where it is not known
	Attempts        int
	Redrives        int
	ContractVersion string
	FirstSeen       time.Time
	LastSeen        time.Time

	// Payload is the feature's bytes as received; they may be no text.
	Payload []byte
	// WKB is the source geometry in the CRS EPSG, two-dimensional and without curves;
	// nil where there is none.
	WKB []byte
	// LonLat is the geometry as GeoJSON in longitude and latitude; nil where it has no
	// place there.
	LonLat json.RawMessage
	// Sketch is LonLat with fewer positions, where there are too many for a page; nil otherwise.
	Sketch json.RawMessage
}
