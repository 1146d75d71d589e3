package ledger

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"geodlq/shared/deadletter"
)

// BatchWindow is one batch in one window: what the lineage manifest says.
type BatchWindow struct {
	Window  Window // Start and End
	BatchID string

	// In the window, in rows.
	Arrived, Cleared, ReplayFailed, Quarantined, Discarded, LostLeases int64
	QuarantinedByReason                                                map[string]int64

	// At its end, in rows.
	ArrivedTotal, Active, ClearedTotal, QuarantinedNow, DiscardedTotal int64
	PoisonRate                                                         *json.Number // to 4 decimals; nil where nothing arrived

	Files []ArchiveFile // that capture wrote in the window
}

// ArchiveFile is an archive file as capture recorded it.
type ArchiveFile struct {
	Key          string `json:"object_key"`
	SourceObject string `json:"source_object"`
	Rows         int64  `json:"rows"`
	Bytes        int64  `json:"bytes"`
	SHA256       string `json:"sha256"`
}

// batchesIn reads the batches of a window. Totals are as they stood at its end, so
// that a repetition reads the same.
const batchesIn = `
	WITH span AS (
	    SELECT counts_from, window_end FROM dlq_windows WHERE window_start = $1
	), happened AS MATERIALIZED (
	    SELECT a.* FROM dlq_activity a, span s WHERE a.window_start >= s.counts_from AND a.window_start < s.window_end
	), files AS MATERIALIZED (
	    SELECT f.* FROM dlq_archive_files f, span s WHERE f.window_start >= s.counts_from AND f.window_start < s.window_end
	), later AS MATERIALIZED (
	    SELECT batch_id, ` + effects + `
	    FROM dlq_activity
	    WHERE window_start >= (SELECT window_end FROM span) AND batch_id IN (SELECT batch_id FROM happened UNION SELECT batch_id FROM files)
	    GROUP BY batch_id
	), flows AS (
	    SELECT batch_id, ` + flows + `
	    FROM happened
	    GROUP BY batch_id
	), reasons AS (
	    SELECT batch_id, jsonb_object_agg(reason, n) AS by_reason
	    FROM (SELECT batch_id, reason, sum(n) AS n FROM happened
	          WHERE to_status = 'quarantined' AND transition <> 'moved' GROUP BY batch_id, reason) q
	    GROUP BY batch_id
	), archived AS (
	    SELECT batch_id, jsonb_agg(jsonb_build_object('object_key', object_key, 'source_object', source_object, 'rows', rows,
	                                                  'bytes', bytes, 'sha256', sha256) ORDER BY object_key) AS files
	    FROM files
	    GROUP BY batch_id
	)
	SELECT batch_id, coalesce(f.arrived, 0), coalesce(f.cleared, 0), coalesce(f.replay_failed, 0),
	       coalesce(f.quarantined, 0), coalesce(f.discarded, 0), coalesce(f.lost_leases, 0),
	       coalesce(r.by_reason, '{}'),
	       coalesce(b.arrived, 0) - coalesce(l.arrived, 0),
	       coalesce(b.active, 0) - coalesce(l.arrived - l.cleared - l.quarantined - l.discarded, 0),
	       coalesce(b.cleared, 0) - coalesce(l.cleared, 0),
	       coalesce(b.quarantined, 0) - coalesce(l.quarantined, 0),
	       coalesce(b.discarded, 0) - coalesce(l.discarded, 0),
	       CASE WHEN b.arrived > coalesce(l.arrived, 0)
	            THEN round((b.quarantined - coalesce(l.quarantined, 0))::numeric / (b.arrived - coalesce(l.arrived, 0)), 4)::text END,
	       coalesce(a.files, '[]')
	FROM (SELECT batch_id FROM flows UNION SELECT batch_id FROM archived) x
	LEFT JOIN flows f USING (batch_id)
	LEFT JOIN reasons r USING (batch_id)
	LEFT JOIN archived a USING (batch_id)
	LEFT JOIN dlq_batches b USING (batch_id)
	LEFT JOIN later l USING (batch_id)
	ORDER BY batch_id`

// In returns the batches that something happened to in a closed window.
func (b *Books) In(ctx context.Context, w Window) ([]BatchWindow, error) {
	rows, err := b.db.Query(ctx, batchesIn, w.Start)
	if err != nil {
		return nil, fmt.Errorf("read the batches of the window from %s: %w", w.Start.Format(time.RFC3339), err)
	}
	batches, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (BatchWindow, error) {
		x := BatchWindow{Window: w}
		var rate *string
		err := row.Scan(&x.BatchID, &x.Arrived, &x.Cleared, &x.ReplayFailed, &x.Quarantined, &x.Discarded, &x.LostLeases, &x.QuarantinedByReason,
			&x.ArrivedTotal, &x.Active, &x.ClearedTotal, &x.QuarantinedNow, &x.DiscardedTotal, &rate, &x.Files)
		if rate != nil {
			x.PoisonRate = (*json.Number)(rate)
		}
		return x, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the batches of the window from %s: %w", w.Start.Format(time.RFC3339), err)
	}
	return batches, nil
}

// Lineage writes batches as OpenLineage events.
type Lineage struct {
	Stage   string // deployment; part of the job's namespace
	Archive string // bucket of the archive files
	// Target names the target table as OpenLineage does: the datasource
	// (postgres://host:port) and the table (database.schema.table).
	TargetNamespace, TargetName string
}

// Names in the events. The schemas are those published at openlineage.io; the
// facets of our own have URNs.
const (
	producer          = "urn:geodlq:metrics"
	runEventSchema    = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
	nominalTimeSchema = "https://openlineage.io/spec/facets/1-0-1/NominalTimeRunFacet.json#/$defs/NominalTimeRunFacet"
	versionSchema     = "https://openlineage.io/spec/facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"
	inputStatsSchema  = "https://openlineage.io/spec/facets/1-0-0/InputStatisticsInputDatasetFacet.json#/$defs/InputStatisticsInputDatasetFacet"
	outputStatsSchema = "https://openlineage.io/spec/facets/1-0-2/OutputStatisticsOutputDatasetFacet.json#/$defs/OutputStatisticsOutputDatasetFacet"
	queueSchema       = "urn:geodlq:facet:DeadLetterQueueRunFacet:1-0-0"
	digestSchema      = "urn:geodlq:facet:DigestDatasetFacet:1-0-0"

	jobName = "dead_letters"
)

// An OpenLineage run event and its parts, as far as they are used here.
type (
	runEvent struct {
		EventType string    `json:"eventType"`
		EventTime string    `json:"eventTime"`
		Run       run       `json:"run"`
		Job       job       `json:"job"`
		Inputs    []dataset `json:"inputs"`
		Outputs   []dataset `json:"outputs"`
		Producer  string    `json:"producer"`
		SchemaURL string    `json:"schemaURL"`
	}
	run struct {
		RunID  string         `json:"runId"`
		Facets map[string]any `json:"facets"`
	}
	job struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	dataset struct {
		Namespace    string         `json:"namespace"`
		Name         string         `json:"name"`
		Facets       map[string]any `json:"facets,omitempty"`
		InputFacets  map[string]any `json:"inputFacets,omitempty"`
		OutputFacets map[string]any `json:"outputFacets,omitempty"`
	}
	facet struct {
		Producer  string `json:"_producer"`
		SchemaURL string `json:"_schemaURL"`
	}
	nominalTime struct {
		facet
		Start string `json:"nominalStartTime"`
		End   string `json:"nominalEndTime"`
	}
	datasetVersion struct {
		facet
		Version string `json:"datasetVersion"`
	}
	inputStatistics struct {
		facet
		RowCount int64 `json:"rowCount"`
	}
	outputStatistics struct {
		facet
		RowCount int64 `json:"rowCount"`
		Size     int64 `json:"size,omitempty"`
	}
	digest struct {
		facet
		Algorithm string `json:"algorithm"`
		Value     string `json:"value"`
	}
	// deadLetterQueue is the facet with the counters of the queue.
	deadLetterQueue struct {
		facet
		BatchID    string       `json:"batchId"`
		Window     queueWindow  `json:"window"`
		Totals     queueTotals  `json:"totals"`
		PoisonRate *json.Number `json:"poisonRate"`
	}
	queueWindow struct {
		Arrived             int64            `json:"arrived"`
		Cleared             int64            `json:"cleared"`
		ReplayFailed        int64            `json:"replayFailed"`
		Quarantined         int64            `json:"quarantined"`
		Discarded           int64            `json:"discarded"`
		LostLeases          int64            `json:"lostLeases"`
		QuarantinedByReason map[string]int64 `json:"quarantinedByReason"`
	}
	queueTotals struct {
		Arrived     int64 `json:"arrived"`
		Active      int64 `json:"active"`
		Cleared     int64 `json:"cleared"`
		Quarantined int64 `json:"quarantined"`
		Discarded   int64 `json:"discarded"`
	}
)

// Prefix is where manifests lie in the bucket of the archive.
const Prefix = "lineage/"

// Object returns the key and the content of the manifest of a batch in a window:
// a line for the START event of the run and one for its COMPLETE event, each an
// OpenLineage 2-0-2 RunEvent. The run is the window of the batch. Both follow from
// the arguments alone.
func (l Lineage) Object(x BatchWindow) (key string, content []byte, err error) {
	runID := l.runID(x)
	start, end := stamp(x.Window.Start), stamp(x.Window.End)
	event := runEvent{
		EventType: "START",
		EventTime: start,
		Run: run{RunID: runID.String(), Facets: map[string]any{
			"nominalTime": nominalTime{facet{producer, nominalTimeSchema}, start, end},
		}},
		Job:       job{Namespace: "geodlq-" + l.Stage, Name: jobName},
		Inputs:    inputs(x.Files),
		Outputs:   []dataset{},
		Producer:  producer,
		SchemaURL: runEventSchema,
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(event); err != nil {
		return "", nil, fmt.Errorf("write the lineage of batch %q: %w", x.BatchID, err)
	}
	event.EventType, event.EventTime = "COMPLETE", end
	event.Outputs = l.outputs(x)
	event.Run.Facets["geodlq_deadLetterQueue"] = deadLetterQueue{
		facet:   facet{producer, queueSchema},
		BatchID: x.BatchID,
		Window: queueWindow{x.Arrived, x.Cleared, x.ReplayFailed, x.Quarantined, x.Discarded, x.LostLeases,
			x.QuarantinedByReason},
		Totals:     queueTotals{x.ArrivedTotal, x.Active, x.ClearedTotal, x.QuarantinedNow, x.DiscardedTotal},
		PoisonRate: x.PoisonRate,
	}
	if err := enc.Encode(event); err != nil {
		return "", nil, fmt.Errorf("write the lineage of batch %q: %w", x.BatchID, err)
	}
	key = Prefix + "date=" + x.Window.Start.UTC().Format("2006-01-02") +
		"/window=" + x.Window.Start.UTC().Format("20060102T150405.999999Z") + "/" + runID.String() + ".ndjson"
	return key, out.Bytes(), nil
}

// inputs are the inbox objects that archive files came from.
func inputs(files []ArchiveFile) []dataset {
	list := []dataset{}
	at := map[string]int{}
	for _, f := range files {
		if i, ok := at[f.SourceObject]; ok {
			stats := list[i].InputFacets["inputStatistics"].(inputStatistics)
			stats.RowCount += f.Rows
			list[i].InputFacets["inputStatistics"] = stats
			continue
		}
		at[f.SourceObject] = len(list)
		bucket, name, version := splitObject(f.SourceObject)
		d := dataset{
			Namespace:   "s3://" + bucket,
			Name:        name,
			InputFacets: map[string]any{"inputStatistics": inputStatistics{facet{producer, inputStatsSchema}, f.Rows}},
		}
		if version != "" {
			d.Facets = map[string]any{"version": datasetVersion{facet{producer, versionSchema}, version}}
		}
		list = append(list, d)
	}
	return list
}

// splitObject takes apart s3://bucket/key, with ?versionId= where there is a version.
func splitObject(object string) (bucket, key, version string) {
	bucket, key, _ = strings.Cut(strings.TrimPrefix(object, "s3://"), "/")
	if i := strings.LastIndex(key, "?versionId="); i >= 0 {
		key, version = key[:i], key[i+len("?versionId="):]
	}
	return bucket, key, version
}

func (l Lineage) outputs(x BatchWindow) []dataset {
	list := []dataset{}
	for _, f := range x.Files {
		list = append(list, dataset{
			Namespace:    "s3://" + l.Archive,
			Name:         f.Key,
			Facets:       map[string]any{"geodlq_digest": digest{facet{producer, digestSchema}, "sha256", f.SHA256}},
			OutputFacets: map[string]any{"outputStatistics": outputStatistics{facet{producer, outputStatsSchema}, f.Rows, f.Bytes}},
		})
	}
	if x.Cleared > 0 {
		list = append(list, dataset{
			Namespace:    l.TargetNamespace,
			Name:         l.TargetName,
			OutputFacets: map[string]any{"outputStatistics": outputStatistics{facet: facet{producer, outputStatsSchema}, RowCount: x.Cleared}},
		})
	}
	return list
}

// runNamespace is the namespace of run ids: a random UUID, fixed for ever.
var runNamespace = deadletter.UUID{0x3e, 0x91, 0xc6, 0x0a, 0x57, 0xd8, 0x4b, 0x23, 0xa4, 0x7c, 0x19, 0xf0, 0x6b, 0x82, 0xdd, 0x5e}

// runID derives the id of a run as UUIDv5 (RFC 9562 section 5.5).
func (l Lineage) runID(x BatchWindow) deadletter.UUID {
	h := sha1.New()
	h.Write(runNamespace[:])
	// The batch last, for only it may contain the separator.
	fmt.Fprintf(h, "%s\n%s\n%s", l.Stage, stamp(x.Window.Start), x.BatchID)
	var u deadletter.UUID
	copy(u[:], h.Sum(nil))
	u[6] = u[6]&0x0f | 0x50
	u[8] = u[8]&0x3f | 0x80
	return u
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// TargetTable returns the name of the target table as OpenLineage has it:
// database.schema.table.
func (b *Books) TargetTable(ctx context.Context) (name string, err error) {
	const table = `
		SELECT format('%s.%s.%s', current_database(), n.nspname, c.relname)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid = 'processed_features'::regclass`
	if err := b.db.QueryRow(ctx, table).Scan(&name); err != nil {
		return "", fmt.Errorf("name the target table: %w", err)
	}
	return name, nil
}
