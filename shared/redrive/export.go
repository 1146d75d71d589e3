package redrive

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"

	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
	"geodlq/shared/export"
)

// ExportRequest writes rows to S3, for people and their tools.
type ExportRequest struct {
	// Filter; without a status it takes what is open: pending and quarantined.
	Filter Filter `json:"filter"`
	// Formats are geojsonseq, geoparquet and html; all three by default.
	Formats []string `json:"formats,omitempty"`
	Limit   int64    `json:"limit,omitempty"` // most rows, the oldest; 0 is no limit
	Title   string   `json:"title,omitempty"` // of the page
	Actor   string   `json:"actor,omitempty"`
	Why     string   `json:"why,omitempty"`
	// Export and After go on with an export that had no time for all rows: the values
	// of its answer, the latter as next.
	Export string `json:"export,omitempty"`
	After  int64  `json:"after,omitempty"`
}

// Export is what was written. Where Next is not 0 the time was up; the same request
// with export and after writes the rest.
type Export struct {
	Export string       `json:"export"`
	Prefix string       `json:"prefix"`
	Rows   int64        `json:"rows"`
	Mapped int64        `json:"mapped"` // of these, with a place in longitude and latitude
	Files  []ExportFile `json:"files"`
	Next   int64        `json:"next,omitempty"`
}

// ExportFile is one file in the bucket.
type ExportFile struct {
	Format string `json:"format"`
	URI    string `json:"uri"`
	CRS    int    `json:"crs,omitempty"` // EPSG code of a GeoParquet file; 0 where it is not known
	Rows   int64  `json:"rows"`
	Bytes  int64  `json:"bytes"`
}

// ExportPrefix is where exports lie in the dead-letter bucket.
const ExportPrefix = "exports/"

const (
	formatSequence = "geojsonseq"
	formatParquet  = "geoparquet"
	formatPage     = "html"
)

var formats = []string{formatSequence, formatParquet, formatPage}

// An export is written in bounded memory: a file ends at fileBytes, and all files that
// are open end when together they hold openBytes. It reads pageRows rows at a time.
const (
	fileBytes = 32 << 20
	openBytes = 96 << 20
	pageRows  = 1000
)

func (s *Service) export(ctx context.Context, c Caller, r ExportRequest) (Export, error) {
	actor, err := c.actor(r.Actor)
	if err != nil {
		return Export{}, err
	}
	if r.Formats == nil {
		r.Formats = formats
	}
	for _, f := range r.Formats {
		if !slices.Contains(formats, f) {
			return Export{}, badRequest("format %q: want one of %q", f, formats)
		}
	}
	if r.Limit < 0 || r.After < 0 {
		return Export{}, badRequest("limit and after are 0, for none, or more")
	}
	f := r.Filter
	if f.Status == nil {
		f.Status = open
	}
	var q query
	where, err := s.compiled(ctx, &f, &q)
	if err != nil {
		return Export{}, err
	}
	if r.Export == "" {
		r.Export = deadletter.NewUUID().String()
	} else if _, err := deadletter.ParseUUID(r.Export); err != nil {
		return Export{}, &RequestError{err}
	}
	w := &exporter{s: s, ctx: ctx, parts: map[partKey]*part{}, answer: Export{
		Export: r.Export, Prefix: "s3://" + s.Bucket + "/" + ExportPrefix + r.Export + "/", Files: []ExportFile{},
	}}
	for _, format := range r.Formats {
		switch format {
		case formatSequence:
			w.sequence = true
		case formatParquet:
			w.parquet = true
		case formatPage:
			filter, err := json.Marshal(r.Filter)
			if err != nil {
				return Export{}, fmt.Errorf("write down the filter: %w", err)
			}
			title := r.Title
			if title == "" {
				title = "Dead letters"
			}
			w.page = &export.Page{Title: title, Filter: string(filter), Made: time.Now()}
		}
	}
	if err := w.run(where, q, r.After, r.Limit); err != nil {
		return Export{}, err
	}
	return w.answer, s.auditExport(ctx, c, actor, r, w.answer)
}

func (s *Service) auditExport(ctx context.Context, c Caller, actor string, r ExportRequest, a Export) error {
	request, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write to the audit table: %w", err)
	}
	_, err = s.DB.Exec(ctx, `INSERT INTO redrive_audit (actor, request_id, action, request, counts)
		VALUES ($1, $2, 'export', $3::jsonb, jsonb_build_object('rows', $4::bigint, 'mapped', $5::bigint, 'files', $6::bigint))`,
		actor, c.RequestID, string(request), a.Rows, a.Mapped, len(a.Files))
	if err != nil {
		return fmt.Errorf("write to the audit table: %w", err)
	}
	return nil
}

// exporter writes one export, or as much of it as there is time for.
type exporter struct {
	s                 *Service
	ctx               context.Context
	sequence, parquet bool
	page              *export.Page
	parts             map[partKey]*part
	answer            Export
}

// partKey tells the files that are open apart.
type partKey struct {
	format string
	crs    int
}

// part is a file that is being written.
type part struct {
	key     string
	buffer  archive.Buffer
	parquet *export.GeoParquet
	rows    int64
}

// exportRows reads a page of rows. The geometry is given twice: as it came, and in
// longitude and latitude; the latter a third time in fewer positions where it has so
// many that a browser would choke on them.
const exportRows = `
	SELECT f.id, f.dlq_id::text, coalesce(f.feature_id, f.task_id, ''), f.batch_id, f.status, coalesce(f.error_type, ''), coalesce(f.failed_rule, ''),
	       coalesce(f.error, ''), coalesce(f.fingerprint, ''), coalesce(f.source_crs, ''),
	       CASE WHEN ST_SRID(f.geom) > 0 AND f.epsg > 0 AND f.epsg <> ST_SRID(f.geom) THEN 0 ELSE coalesce(nullif(ST_SRID(f.geom), 0), f.epsg, 0) END,
	       f.attempts, f.redrives, coalesce(f.contract_version, ''), f.first_seen, f.last_seen, f.feature_geojson, f.payload_raw,
	       ST_AsBinary(ST_Force2D(CASE WHEN ST_HasArc(f.geom) THEN ST_CurveToLine(f.geom) ELSE f.geom END)),
	       ST_AsGeoJSON(m.g, 9),
	       CASE WHEN ST_NPoints(m.g) > 2000
	            THEN ST_AsGeoJSON(ST_Simplify(m.g, greatest(ST_XMax(m.g) - ST_XMin(m.g), ST_YMax(m.g) - ST_YMin(m.g)) / 1000, true), 7) END
	FROM failed_geotasks f
	CROSS JOIN LATERAL (SELECT geodlq_lonlat(f.geom, f.epsg) AS g OFFSET 0) m
	WHERE %s AND f.id > %s::bigint
	ORDER BY f.id LIMIT %s::bigint`

// run writes rows after the given id until there are none, limit is reached, or the time is up.
func (e *exporter) run(where string, q query, after, limit int64) error {
	var cost time.Duration
	for e.s.mayGoOn(e.ctx, cost) {
		began := time.Now()
		size := int64(pageRows)
		if limit > 0 {
			size = min(size, limit-e.answer.Rows)
		}
		n, last, err := e.read(where, q, after, size)
		if err != nil {
			return err
		}
		after = max(after, last)
		if n < size || limit > 0 && e.answer.Rows >= limit {
			return e.close()
		}
		took := time.Since(began)
		cost = max(took, (cost+took)/2)
	}
	if e.answer.Rows == 0 {
		return fmt.Errorf("there was no time to export a single row: %w", context.DeadlineExceeded)
	}
	e.answer.Next = after
	return e.close()
}

// read exports one page of rows.
func (e *exporter) read(where string, q query, after, size int64) (n, last int64, err error) {
	q.args = slices.Clone(q.args)
	sql := fmt.Sprintf(exportRows, where, q.arg(after), q.arg(size))
	rows, err := e.s.DB.Query(e.ctx, sql, q.args...)
	if err != nil {
		return 0, 0, fmt.Errorf("read rows to export: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		f, err := scanFeature(rows)
		if err != nil {
			return 0, 0, fmt.Errorf("read rows to export: %w", err)
		}
		if err := e.write(&f); err != nil {
			return 0, 0, err
		}
		n, last = n+1, f.ID
	}
	if err := rows.Err(); err != nil {
		return 0, 0, fmt.Errorf("read rows to export: %w", err)
	}
	return n, last, nil
}

func scanFeature(row pgx.Rows) (export.Feature, error) {
	var f export.Feature
	var text, lonLat, sketch *string
	err := row.Scan(&f.ID, &f.DLQID, &f.FeatureID, &f.BatchID, &f.Status, &f.Reason, &f.FailedRule, &f.Error, &f.Fingerprint, &f.SourceCRS, &f.EPSG,
		&f.Attempts, &f.Redrives, &f.ContractVersion, &f.FirstSeen, &f.LastSeen, &text, &f.Payload, &f.WKB, &lonLat, &sketch)
	if err != nil {
		return export.Feature{}, err
	}
	if text != nil {
		f.Payload = []byte(*text)
	}
	if lonLat != nil {
		f.LonLat = json.RawMessage(*lonLat)
	}
	if sketch != nil {
		f.Sketch = json.RawMessage(*sketch)
	}
	return f, nil
}

// write puts a feature into each file it belongs to.
func (e *exporter) write(f *export.Feature) error {
	e.answer.Rows++
	if f.LonLat != nil {
		e.answer.Mapped++
	}
	if e.page != nil {
		e.page.Add(f)
	}
	if e.sequence {
		p := e.part(partKey{format: formatSequence}, fmt.Sprintf("features-%d.geojsons", f.ID))
		if err := export.WriteSequence(&p.buffer, f); err != nil {
			return err
		}
		p.rows++
	}
	if e.parquet {
		key, name := partKey{formatParquet, f.EPSG}, fmt.Sprintf("crs-%d-%d.parquet", f.EPSG, f.ID)
		if f.WKB == nil || f.EPSG == 0 {
			key, name = partKey{formatParquet, 0}, fmt.Sprintf("crs-unknown-%d.parquet", f.ID)
		}
		p := e.part(key, name)
		if p.parquet == nil {
			var err error
			if p.parquet, err = export.NewGeoParquet(&p.buffer, key.crs); err != nil {
				return err
			}
		}
		if err := p.parquet.Write(f); err != nil {
			return err
		}
		p.rows++
	}
	return e.bound()
}

func (e *exporter) part(key partKey, name string) *part {
	p := e.parts[key]
	if p == nil {
		p = &part{key: ExportPrefix + e.answer.Export + "/" + name}
		e.parts[key] = p
	}
	return p
}

// size is what a part holds in memory.
func (p *part) size() int64 {
	n := p.buffer.Len()
	if p.parquet != nil {
		n += p.parquet.Buffered()
	}
	return n
}

// bound ends files that have become large.
func (e *exporter) bound() error {
	var sum int64
	for key, p := range e.parts {
		size := p.size()
		sum += size
		if size < fileBytes {
			continue
		}
		sum -= size
		if err := e.end(key, p); err != nil {
			return err
		}
	}
	if sum < openBytes {
		return nil
	}
	return e.endAll()
}

func (e *exporter) endAll() error {
	for key, p := range e.parts {
		if err := e.end(key, p); err != nil {
			return err
		}
	}
	return nil
}

// end stores a file.
func (e *exporter) end(key partKey, p *part) error {
	contentType := export.SequenceType
	if p.parquet != nil {
		if err := p.parquet.Close(); err != nil {
			return err
		}
		contentType = archive.ContentType
	}
	if err := e.put(p.key, contentType, &p.buffer); err != nil {
		return err
	}
	e.answer.Files = append(e.answer.Files, ExportFile{Format: key.format, URI: "s3://" + e.s.Bucket + "/" + p.key, CRS: key.crs, Rows: p.rows, Bytes: p.buffer.Len()})
	delete(e.parts, key)
	return nil
}

func (e *exporter) put(key, contentType string, b *archive.Buffer) error {
	// What was read must not be lost because the time is up: the margin is there for this.
	_, err := e.s.S3.PutObject(context.WithoutCancel(e.ctx), &s3.PutObjectInput{
		Bucket: &e.s.Bucket, Key: &key, Body: b.Reader(), ContentLength: aws.Int64(b.Len()), ContentType: &contentType,
	})
	if err != nil {
		return fmt.Errorf("store export s3://%s/%s: %w", e.s.Bucket, key, err)
	}
	return nil
}

// close stores what is open, and the page.
func (e *exporter) close() error {
	if err := e.endAll(); err != nil {
		return err
	}
	if e.page != nil {
		var b archive.Buffer
		if _, err := e.page.WriteTo(&b); err != nil {
			return err
		}
		name := "map.html"
		if e.answer.Next != 0 {
			name = fmt.Sprintf("map-to-%d.html", e.answer.Next)
		}
		key := ExportPrefix + e.answer.Export + "/" + name
		if err := e.put(key, "text/html; charset=utf-8", &b); err != nil {
			return err
		}
		e.answer.Files = append(e.answer.Files, ExportFile{Format: formatPage, URI: "s3://" + e.s.Bucket + "/" + key, Rows: e.answer.Rows, Bytes: b.Len()})
	}
	slices.SortFunc(e.answer.Files, func(a, b ExportFile) int {
		if a.URI < b.URI {
			return -1
		}
		return 1
	})
	return nil
}
