package redrive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"geodlq/shared/deadletter"
)

// GroupsRequest asks how many rows there are of each cause.
type GroupsRequest struct {
	// Filter; without a status it looks at what is open: pending and quarantined.
	Filter Filter `json:"filter"`
	// By names what makes a group, of batch_id, status, reason, failed_rule and
	// fingerprint; all of them by default.
	By    []string `json:"by,omitempty"`
	Limit int      `json:"limit,omitempty"` // most groups; 50 by default, at most 1,000
}

// Groups are causes, those with the most rows first.
type Groups struct {
	Rows      int64   `json:"rows"`   // that the filter takes
	Count     int64   `json:"groups"` // all there are, shown or not
	Groups    []Group `json:"list"`
	FromIndex bool    `json:"from_index"` // counted by the database as rows change, not now
}

// Group is one cause. What the request does not group by is empty.
type Group struct {
	BatchID     string   `json:"batch_id,omitempty"`
	Status      string   `json:"status,omitempty"`
	Reason      string   `json:"reason,omitempty"`
	FailedRule  string   `json:"failed_rule,omitempty"`
	Fingerprint string   `json:"fingerprint,omitempty"`
	Pattern     string   `json:"pattern,omitempty"` // the example's message with numbers, ids and coordinates taken out
	Rows        int64    `json:"rows"`
	Example     *Example `json:"example"` // null where the last row of the group went just now
}

// Example is one row of a group.
type Example struct {
	ID        int64  `json:"id"`
	FeatureID string `json:"feature_id"`
	SourceCRS string `json:"source_crs,omitempty"`
	Error     string `json:"error"`
}

// groupKeys are what groups can be made by, with the column of failed_geotasks.
var groupKeys = []struct{ name, column string }{
	{"batch_id", "batch_id"}, {"status", "status"}, {"reason", "error_type"}, {"failed_rule", "failed_rule"}, {"fingerprint", "fingerprint"},
}

// open are the statuses of rows that wait for something.
var open = Texts{"pending", "quarantined"}

func (s *Service) groups(ctx context.Context, _ Caller, r GroupsRequest) (Groups, error) {
	limit, err := pageSize(r.Limit, 50, 1000)
	if err != nil {
		return Groups{}, err
	}
	by, err := groupedBy(r.By)
	if err != nil {
		return Groups{}, err
	}
	f := r.Filter
	if f.Status == nil {
		f.Status = open
	}
	var q query
	where, err := s.compiled(ctx, &f, &q)
	if err != nil {
		return Groups{}, err
	}
	// Texts that a row does not have are empty in the groups.
	source, n, example := "failure_group_totals f", "sum(f.n)::bigint", "max(f.example)"
	if !f.keysOnly() {
		source, n, example = "failed_geotasks f", "count(*)", "max(f.id)"
	} else if _, err := s.DB.Exec(ctx, "SELECT geodlq_fold_groups()"); err != nil {
		return Groups{}, fmt.Errorf("fold the groups: %w", err)
	}
	var outer, keys []string
	for _, k := range groupKeys {
		if by[k.name] {
			outer = append(outer, "coalesce(f."+k.column+", '')")
			keys = append(keys, "coalesce(f."+k.column+", '')")
		} else {
			outer = append(outer, "''")
		}
	}
	counted := fmt.Sprintf(`
		WITH g (batch_id, status, error_type, failed_rule, fingerprint, n, example) AS (
		    SELECT %s, %s, %s FROM %s WHERE %s GROUP BY %s
		)
		SELECT g.*, count(*) OVER (), (sum(n) OVER ())::bigint FROM g
		ORDER BY n DESC, 1, 2, 3, 4, 5 LIMIT %s::bigint`,
		strings.Join(outer, ", "), n, example, source, where, strings.Join(append(keys, "()"), ", "), q.arg(limit))
	type line struct {
		BatchID, Status, Reason, Rule, Fingerprint string
		Rows                                       int64
		Example                                    *int64
		Groups, All                                int64
	}
	lines, err := collect[line](ctx, s.DB, counted, q.args...)
	if err != nil {
		return Groups{}, fmt.Errorf("count the groups: %w", err)
	}
	answer := Groups{Groups: []Group{}, FromIndex: f.keysOnly()}
	for _, l := range lines {
		answer.Rows, answer.Count = l.All, l.Groups
		g := Group{BatchID: l.BatchID, Status: l.Status, Reason: l.Reason, FailedRule: l.Rule, Fingerprint: l.Fingerprint, Rows: l.Rows}
		if err := s.example(ctx, &g, by, &f, l.Example); err != nil {
			return Groups{}, err
		}
		answer.Groups = append(answer.Groups, g)
	}
	return answer, nil
}

func groupedBy(names []string) (map[string]bool, error) {
	by := map[string]bool{}
	known := map[string]bool{}
	for _, k := range groupKeys {
		known[k.name] = true
		by[k.name] = names == nil
	}
	for _, n := range names {
		if !known[n] {
			return nil, badRequest("by %q: want batch_id, status, reason, failed_rule, fingerprint", n)
		}
		by[n] = true
	}
	return by, nil
}

// example finds one row of a group: the one it was told of, if that is still in it, or any.
func (s *Service) example(ctx context.Context, g *Group, by map[string]bool, f *Filter, hint *int64) error {
	try := func(id *int64) (found bool, err error) {
		var q query
		var c []string
		if id != nil {
			c = append(c, "f.id = "+q.arg(*id)+"::bigint")
		} else {
			// Whatever else the filter says is in the group's keys.
			narrowed := *f
			narrowed.BatchID, narrowed.Status, narrowed.Reason, narrowed.FailedRule, narrowed.Fingerprint = nil, nil, nil, nil, nil
			if f.keysOnly() {
				c = append(c, f.where(&q, ""))
			} else {
				return false, nil
			}
		}
		for _, k := range groupKeys {
			if !by[k.name] {
				continue
			}
			value := map[string]string{"batch_id": g.BatchID, "status": g.Status, "reason": g.Reason, "failed_rule": g.FailedRule, "fingerprint": g.Fingerprint}[k.name]
			switch {
			case k.name == "status":
				c = append(c, "f.status = '"+value+"'") // of the closed list; a constant, so that partial indexes apply
			case value == "":
				c = append(c, "coalesce(f."+k.column+", '') = ''")
			default:
				c = append(c, "f."+k.column+" = "+q.arg(value)+"::text")
			}
		}
		e := Example{}
		err = s.DB.QueryRow(ctx, `SELECT f.id, coalesce(f.feature_id, f.task_id, ''), coalesce(f.source_crs, ''), coalesce(f.error, ''), coalesce(geodlq_pattern(f.error), '')
			FROM failed_geotasks f WHERE `+strings.Join(c, " AND ")+` LIMIT 1`, q.args...).Scan(&e.ID, &e.FeatureID, &e.SourceCRS, &e.Error, &g.Pattern)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("find an example of a group: %w", err)
		}
		g.Example = &e
		return true, nil
	}
	if hint != nil {
		if found, err := try(hint); found || err != nil {
			return err
		}
	}
	_, err := try(nil)
	return err
}

// pageSize is what was asked for, or the default.
func pageSize(asked, byDefault, most int) (int, error) {
	switch {
	case asked == 0:
		return byDefault, nil
	case asked < 0 || asked > most:
		return 0, badRequest("limit %d: want 1 to %d", asked, most)
	}
	return asked, nil
}

// ListRequest asks for rows, oldest first.
type ListRequest struct {
	Filter Filter `json:"filter"`
	Limit  int    `json:"limit,omitempty"` // rows a page; 100 by default, at most 1,000
	After  int64  `json:"after,omitempty"` // Next of the page before
}

// List is a page of rows. Next, given as after, gets the next one; it is 0 on the last.
type List struct {
	Rows []Row `json:"rows"`
	Next int64 `json:"next,omitempty"`
}

// Row is a dead letter without its payload.
type Row struct {
	ID              int64           `json:"id"`
	DLQID           string          `json:"dlq_id"`
	FeatureID       string          `json:"feature_id"`
	BatchID         string          `json:"batch_id"`
	Status          string          `json:"status"`
	Reason          string          `json:"reason,omitempty"`
	FailedRule      string          `json:"failed_rule,omitempty"`
	Error           string          `json:"error,omitempty"`
	Fingerprint     string          `json:"fingerprint,omitempty"`
	SourceCRS       string          `json:"source_crs,omitempty"`
	EPSG            int             `json:"epsg,omitempty"`
	Attempts        int             `json:"attempts"` // replays charged, in all
	Forgiven        int             `json:"attempts_forgiven"`
	LostLeases      int             `json:"lost_leases"`
	Redrives        int             `json:"redrives"`
	ContractVersion string          `json:"contract_version,omitempty"`
	FirstSeen       time.Time       `json:"first_seen"`
	LastSeen        time.Time       `json:"last_seen"`
	NextAttempt     time.Time       `json:"next_attempt_at"`
	Leased          bool            `json:"leased"`
	Overrides       json.RawMessage `json:"overrides,omitempty"`
}

const rowColumns = `f.id, f.dlq_id::text, coalesce(f.feature_id, f.task_id, ''), f.batch_id, f.status, coalesce(f.error_type, ''),
	coalesce(f.failed_rule, ''), coalesce(f.error, ''), coalesce(f.fingerprint, ''), coalesce(f.source_crs, ''), coalesce(f.epsg, 0),
	f.attempts, f.attempts_forgiven, f.lost_leases, f.redrives, coalesce(f.contract_version, ''), f.first_seen, f.last_seen,
	f.next_attempt_at, f.lease_token IS NOT NULL, f.overrides::text`

func (r *Row) scan(row pgx.CollectableRow, more ...any) error {
	var overrides *string
	err := row.Scan(append([]any{&r.ID, &r.DLQID, &r.FeatureID, &r.BatchID, &r.Status, &r.Reason, &r.FailedRule, &r.Error, &r.Fingerprint,
		&r.SourceCRS, &r.EPSG, &r.Attempts, &r.Forgiven, &r.LostLeases, &r.Redrives, &r.ContractVersion, &r.FirstSeen, &r.LastSeen,
		&r.NextAttempt, &r.Leased, &overrides}, more...)...)
	if overrides != nil {
		r.Overrides = json.RawMessage(*overrides)
	}
	return err
}

// answerBytes bounds a page, so that the answer stays below what Lambda returns (6 MB).
const answerBytes = 4 << 20

func (s *Service) list(ctx context.Context, _ Caller, r ListRequest) (List, error) {
	limit, err := pageSize(r.Limit, 100, 1000)
	if err != nil {
		return List{}, err
	}
	var q query
	where, err := s.compiled(ctx, &r.Filter, &q)
	if err != nil {
		return List{}, err
	}
	rows, err := s.DB.Query(ctx, `SELECT `+rowColumns+` FROM failed_geotasks f
		WHERE `+where+` AND f.id > `+q.arg(r.After)+`::bigint ORDER BY f.id LIMIT `+q.arg(limit+1)+`::bigint`, q.args...)
	if err != nil {
		return List{}, fmt.Errorf("list rows: %w", err)
	}
	defer rows.Close()
	answer := List{Rows: []Row{}}
	size := 0
	for rows.Next() {
		var row Row
		if err := row.scan(rows); err != nil {
			return List{}, fmt.Errorf("list rows: %w", err)
		}
		size += len(row.Overrides) + len(row.Error) + len(row.SourceCRS) + len(row.BatchID) + len(row.FeatureID) + 500
		if len(answer.Rows) == limit || size > answerBytes && len(answer.Rows) > 0 {
			answer.Next = answer.Rows[len(answer.Rows)-1].ID
			break
		}
		answer.Rows = append(answer.Rows, row)
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return List{}, fmt.Errorf("list rows: %w", err)
	}
	return answer, nil
}

// ShowRequest names one row, by id or by dlq_id.
type ShowRequest struct {
	ID    int64  `json:"id,omitempty"`
	DLQID string `json:"dlq_id,omitempty"`
}

// Shown is one row with all that is known of it.
type Shown struct {
	Row
	// Payload is the feature as received where that is UTF-8, PayloadBase64 where it is
	// not. Of a payload over 1 MiB it is the beginning, and PayloadBytes says how much there is.
	Payload       *string `json:"payload,omitempty"`
	PayloadBase64 []byte  `json:"payload_base64,omitempty"`
	PayloadBytes  int64   `json:"payload_bytes"`
	SourceObject  string  `json:"source_object,omitempty"`
	SourceRecord  *int64  `json:"source_record,omitempty"`
	Upstream      int     `json:"upstream_attempts"`
	GeomHash      string  `json:"geom_hash,omitempty"`

	// Where is where the feature is on the map; null where it has no place there.
	Where *Where `json:"where"`
	// Landed is the feature in the target, where a row has its key.
	Landed *Landed `json:"landed"`

	History []Event `json:"history"`
}

// Where is a geometry in longitude and latitude.
type Where struct {
	Lon      float64         `json:"lon"` // of a position on it
	Lat      float64         `json:"lat"`
	BBox     [4]float64      `json:"bbox"`
	Type     string          `json:"type"`
	Vertices int             `json:"vertices"`
	Geometry json.RawMessage `json:"geometry,omitempty"` // GeoJSON; left out beyond 10,000 vertices
}

// Landed is the row of the target that holds the feature's key.
type Landed struct {
	ID              int64     `json:"id"`
	ContractVersion string    `json:"contract_version,omitempty"`
	Engine          string    `json:"engine,omitempty"`
	Repair          string    `json:"repair,omitempty"`
	ProcessedAt     time.Time `json:"processed_at"`
}

// Event is one line of a row's history, oldest first.
type Event struct {
	At              time.Time `json:"at"`
	Event           string    `json:"event"`
	Attempt         int       `json:"attempt"`
	Rule            string    `json:"failed_rule,omitempty"`
	Reason          string    `json:"reason,omitempty"`
	Error           string    `json:"error,omitempty"`
	ContractVersion string    `json:"contract_version,omitempty"`
	Actor           string    `json:"actor,omitempty"`
}

const showBytes = 1 << 20

func (s *Service) show(ctx context.Context, _ Caller, r ShowRequest) (Shown, error) {
	var q query
	var where string
	switch {
	case r.ID != 0 && r.DLQID == "":
		where = "f.id = " + q.arg(r.ID) + "::bigint"
	case r.ID == 0 && r.DLQID != "":
		id, err := deadletter.ParseUUID(r.DLQID)
		if err != nil {
			return Shown{}, &RequestError{err}
		}
		where = "f.dlq_id = " + q.arg(id.String()) + "::text::uuid"
	default:
		return Shown{}, badRequest("want id or dlq_id")
	}
	var a Shown
	var text *string
	var raw []byte
	rows, err := s.DB.Query(ctx, `SELECT `+rowColumns+`, left(f.feature_geojson, `+fmt.Sprint(showBytes)+`), substring(f.payload_raw FROM 1 FOR `+fmt.Sprint(showBytes)+`),
		coalesce(octet_length(f.feature_geojson), octet_length(f.payload_raw), 0)::bigint,
		coalesce(f.source_object, ''), f.source_record, f.upstream_attempts, coalesce(f.geom_hash, '') FROM failed_geotasks f WHERE `+where, q.args...)
	if err != nil {
		return Shown{}, fmt.Errorf("read the row: %w", err)
	}
	_, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, a.scan(row, &text, &raw, &a.PayloadBytes, &a.SourceObject, &a.SourceRecord, &a.Upstream, &a.GeomHash)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return Shown{}, badRequest("there is no such row")
	}
	if err != nil {
		return Shown{}, fmt.Errorf("read the row: %w", err)
	}
	a.Payload, a.PayloadBase64 = text, raw
	if text != nil && len(*text) > showBytes {
		cut := (*text)[:showBytes]
		for !utf8.ValidString(cut[max(0, len(cut)-utf8.UTFMax):]) && len(cut) > showBytes-utf8.UTFMax {
			cut = cut[:len(cut)-1]
		}
		a.Payload = &cut
	}
	if a.Where, err = s.where(ctx, a.ID); err != nil {
		return Shown{}, err
	}
	if a.GeomHash != "" {
		landed, err := collect[Landed](ctx, s.DB, `SELECT id, coalesce(contract_version, ''), coalesce(engine, ''), coalesce(repair, ''), processed_at
			FROM processed_features WHERE geom_hash = $1`, a.GeomHash)
		if err != nil {
			return Shown{}, fmt.Errorf("look into the target: %w", err)
		}
		if len(landed) > 0 {
			a.Landed = &landed[0]
		}
	}
	a.History, err = collect[Event](ctx, s.DB, `SELECT at, event, attempt, coalesce(failed_rule, ''), coalesce(error_type, ''), coalesce(error, ''), coalesce(contract_version, ''), coalesce(actor, '')
		FROM failed_geotasks_history WHERE task = $1 ORDER BY id DESC LIMIT 500`, a.ID)
	if err != nil {
		return Shown{}, fmt.Errorf("read the row's history: %w", err)
	}
	for i, j := 0, len(a.History)-1; i < j; i, j = i+1, j-1 {
		a.History[i], a.History[j] = a.History[j], a.History[i]
	}
	return a, nil
}

// where puts one row on the map.
func (s *Service) where(ctx context.Context, id int64) (*Where, error) {
	var w Where
	var geometry *string
	err := s.DB.QueryRow(ctx, `SELECT ST_X(ST_GeometryN(ST_Points(m.geom), 1)), ST_Y(ST_GeometryN(ST_Points(m.geom), 1)), ST_XMin(m.geom), ST_YMin(m.geom), ST_XMax(m.geom), ST_YMax(m.geom),
		ST_GeometryType(m.geom), ST_NPoints(m.geom), CASE WHEN ST_NPoints(m.geom) <= 10000 THEN ST_AsGeoJSON(m.geom, 9) END
		FROM failed_geotasks_map m WHERE m.id = $1`, id).
		Scan(&w.Lon, &w.Lat, &w.BBox[0], &w.BBox[1], &w.BBox[2], &w.BBox[3], &w.Type, &w.Vertices, &geometry)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("put the row on the map: %w", err)
	}
	w.Type = strings.TrimPrefix(w.Type, "ST_")
	if geometry != nil {
		w.Geometry = json.RawMessage(*geometry)
	}
	return &w, nil
}
