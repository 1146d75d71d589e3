package export

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"
)

// SequenceType is the media type of a GeoJSON text sequence (RFC 8142).
const SequenceType = "application/geo+json-seq"

// properties are those of a feature of the sequence. The source feature goes along
// word for word, as text: its own attributes may be what is broken.
type properties struct {
	DLQID           string `json:"dlq_id"`
	FeatureID       string `json:"feature_id"`
	BatchID         string `json:"batch_id"`
	Status          string `json:"status"`
	Reason          string `json:"reason"`
	FailedRule      string `json:"failed_rule"`
	Error           string `json:"error"`
	Fingerprint     string `json:"fingerprint"`
	SourceCRS       string `json:"source_crs"`
	EPSG            *int   `json:"epsg"`
	Attempts        int    `json:"attempts"`
	Redrives        int    `json:"redrives"`
	ContractVersion string `json:"contract_version"`
	FirstSeen       string `json:"first_seen"`
	LastSeen        string `json:"last_seen"`
	Payload         string `json:"feature_geojson"`
	PayloadRaw      string `json:"payload_raw,omitempty"` // base64, where the payload is no text
}

const recordSeparator = 0x1E

// timeLayout is RFC 3339 in UTC with microseconds, as PostgreSQL keeps them.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// WriteSequence appends f to a GeoJSON text sequence: a record separator, the feature
// on one line, a line feed. Positions are longitude and latitude (RFC 7946); a feature
// that has no place there has a null geometry.
func WriteSequence(w io.Writer, f *Feature) error {
	p := properties{
		DLQID: f.DLQID, FeatureID: f.FeatureID, BatchID: f.BatchID, Status: f.Status, Reason: f.Reason, FailedRule: f.FailedRule,
		Error: f.Error, Fingerprint: f.Fingerprint, SourceCRS: f.SourceCRS, Attempts: f.Attempts, Redrives: f.Redrives,
		ContractVersion: f.ContractVersion, FirstSeen: f.FirstSeen.UTC().Format(timeLayout), LastSeen: f.LastSeen.UTC().Format(timeLayout),
	}
	if f.EPSG != 0 {
		p.EPSG = &f.EPSG
	}
	if utf8.Valid(f.Payload) {
		p.Payload = string(f.Payload)
	} else {
		p.PayloadRaw = base64.StdEncoding.EncodeToString(f.Payload)
	}
	text := bytes.NewBuffer([]byte{recordSeparator})
	line := json.NewEncoder(text) // ends it with a line feed
	line.SetEscapeHTML(false)
	err := line.Encode(struct {
		Type       string          `json:"type"`
		ID         int64           `json:"id"`
		Geometry   json.RawMessage `json:"geometry"`
		Properties properties      `json:"properties"`
	}{"Feature", f.ID, f.LonLat, p})
	if err == nil {
		_, err = w.Write(text.Bytes())
	}
	if err != nil {
		return fmt.Errorf("write row %d as GeoJSON: %w", f.ID, err)
	}
	return nil
}
