package export

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"sort"
	"strings"
	"time"
)

// Page gathers features for an HTML page with a map of them, which needs nothing
// but itself: no network, no other file. It takes as many as a browser can carry and
// counts the others.
type Page struct {
	Title  string
	Filter string    // what selected the features, for the reader
	Made   time.Time // when

	features []pageFeature
	causes   map[pageCause]int64
	rows     int64
	mapped   int64
	size     int
}

// A page holds so many features and bytes.
const (
	pageFeatures = 10_000
	pageBytesMax = 16 << 20
)

type pageCause struct{ reason, rule string }

type pageFeature struct {
	ID        int64           `json:"id"`
	FeatureID string          `json:"feature_id"`
	BatchID   string          `json:"batch_id"`
	Status    string          `json:"status"`
	Reason    string          `json:"reason"`
	Rule      string          `json:"rule"`
	Error     string          `json:"error"`
	SourceCRS string          `json:"source_crs"`
	Attempts  int             `json:"attempts"`
	Geometry  json.RawMessage `json:"geometry"`
}

// Add puts a feature on the page, or counts it where the page is full.
func (p *Page) Add(f *Feature) {
	if p.causes == nil {
		p.causes = map[pageCause]int64{}
	}
	p.causes[pageCause{f.Reason, f.FailedRule}]++
	p.rows++
	geometry := f.LonLat
	if f.Sketch != nil {
		geometry = f.Sketch
	}
	size := len(geometry) + len(f.Error) + len(f.FeatureID) + len(f.BatchID) + 200
	if len(p.features) >= pageFeatures || p.size+size > pageBytesMax {
		return
	}
	p.size += size
	if geometry != nil {
		p.mapped++
	}
	p.features = append(p.features, pageFeature{
		ID: f.ID, FeatureID: f.FeatureID, BatchID: f.BatchID, Status: f.Status, Reason: f.Reason, Rule: f.FailedRule,
		Error: f.Error, SourceCRS: f.SourceCRS, Attempts: f.Attempts, Geometry: geometry,
	})
}

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
)

// WriteTo writes the page. Whatever the features hold is data in it: escaped in the
// markup, and shown as text by the script, which is the only one the page's policy runs.
func (p *Page) WriteTo(w io.Writer) (int64, error) {
	type cause struct {
		Reason string `json:"reason"`
		Rule   string `json:"rule"`
		Rows   int64  `json:"rows"`
	}
	causes := []cause{}
	for c, n := range p.causes {
		causes = append(causes, cause{c.reason, c.rule, n})
	}
	sort.Slice(causes, func(i, j int) bool {
		a, b := causes[i], causes[j]
		if a.Rows != b.Rows {
			return a.Rows > b.Rows
		}
		return a.Reason+"\x00"+a.Rule < b.Reason+"\x00"+b.Rule
	})
	features := p.features
	if features == nil {
		features = []pageFeature{}
	}
	// Marshal escapes <, > and &, so the text cannot end its script element.
	data, err := json.Marshal(map[string]any{"causes": causes, "features": features})
	if err != nil {
		return 0, fmt.Errorf("write the page: %w", err)
	}
	summary := fmt.Sprintf("%d dead letters, %d of them on the map", p.rows, p.mapped)
	if left := p.rows - int64(len(p.features)); left > 0 {
		summary += fmt.Sprintf("; %d were exported and are counted, but not on this page", left)
	}
	origin := p.Made.UTC().Format("2006-01-02 15:04 UTC")
	if p.Filter != "" {
		origin += " · " + p.Filter
	}
	n, err := strings.NewReplacer(
		"{{.ScriptHash}}", hash(pageJS), "{{.StyleHash}}", hash(pageCSS),
		"{{.Title}}", html.EscapeString(p.Title), "{{.Summary}}", html.EscapeString(summary), "{{.Origin}}", html.EscapeString(origin),
		"{{.Style}}", pageCSS, "{{.Data}}", string(data), "{{.Script}}", pageJS,
	).WriteString(w, pageHTML)
	if err != nil {
		return int64(n), fmt.Errorf("write the page: %w", err)
	}
	return int64(n), nil
}

// hash is a source of a content security policy that allows exactly this text.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
