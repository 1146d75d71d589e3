package inbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"geodlq/shared/archive"
	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
	"geodlq/shared/geojson"
	"geodlq/shared/hive"
	"geodlq/shared/jsonscan"
)

// Defaults is what an object says about all its records that do not say it
// themselves: by its user metadata (x-amz-meta-batch-id, …-source-crs,
// …-failed-rule, …-error-type, …-error-message), and of the batch also by a
// batch_id=… segment of its key.
type Defaults struct {
	BatchID, FailedRule, ErrorType, ErrorMessage string
	SourceCRS                                    *string
}

func (o *Object) defaults() Defaults {
	meta := func(name string) string {
		v := o.Metadata[name]
		// S3 gives metadata that is not ASCII back as RFC 2047 encoded words.
		if decoded, err := new(mime.WordDecoder).DecodeHeader(v); err == nil {
			v = decoded
		}
		return strings.TrimSpace(v)
	}
	d := Defaults{BatchID: meta("batch-id"), FailedRule: meta("failed-rule"), ErrorType: meta("error-type"), ErrorMessage: meta("error-message")}
	if name := meta("source-crs"); name != "" {
		d.SourceCRS = &name
	}
	if d.BatchID == "" {
		for _, segment := range strings.Split(o.Key, "/") {
			if value, ok := strings.CutPrefix(segment, "batch_id="); ok && value != "" {
				d.BatchID = hive.Value(value)
			}
		}
	}
	if d.BatchID = identifier(d.BatchID); d.BatchID == "" {
		d.BatchID = deadletter.UnattributedBatch
	}
	return d
}

// maxIdentifier bounds batch and feature ids, in bytes, so that PostgreSQL can index them.
const maxIdentifier = 512

// identifier makes s fit to be an id: storable, and no longer than the bound. What
// is cut off is replaced by a digest, so that different ids stay different.
func identifier(s string) string {
	s = deadletter.Text(s)
	if len(s) <= maxIdentifier {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	at := maxIdentifier - 1 - 2*len(sum)
	for !utf8.RuneStart(s[at]) {
		at--
	}
	return s[:at] + "~" + hex.EncodeToString(sum[:])
}

// decoder makes rows of units. Each worker has its own.
type decoder struct {
	object   *Object
	uri      string
	defaults Defaults
	limits   Limits
	words    map[string]*string // texts that repeat from record to record
	codes    map[string]int     // resolved CRS names, 0 for those that are none
	members  map[string]member  // resolved "crs" members
}

type member struct {
	name string
	code int
}

// maxWords bounds each of a decoder's memories; a full one is begun anew.
const maxWords = 1024

func newDecoder(o *Object, limits Limits) *decoder {
	return &decoder{object: o, uri: deadletter.Text(o.URI()), defaults: o.defaults(), limits: limits,
		words: map[string]*string{}, codes: map[string]int{}, members: map[string]member{}}
}

// word returns b as a string that is shared among the records that have it.
func (d *decoder) word(b []byte) *string {
	if s, ok := d.words[string(b)]; ok {
		return s
	}
	if len(d.words) >= maxWords {
		clear(d.words)
	}
	s := string(b)
	d.words[s] = &s
	return &s
}

// unit appends what u holds to rows. from is the event it came in, where it did.
func (d *decoder) unit(u *unit, from *envelope, rows []archive.Row) []archive.Row {
	r := d.blank(u)
	if from != nil {
		from.describe(d, &r)
	}
	switch {
	case u.form == formBroken:
		d.readable(&r, u.data)
		if f, _ := geojson.Decode(u.data, geojson.Limits{MaxBytes: len(u.data) + 1}); r.FeatureID == "" && f.HasID {
			r.FeatureID = identifier(f.ID)
		}
		return append(rows, d.malformed(r, u, u.data, u.fault))
	case u.sha256 != "":
		d.readable(&r, u.data)
		return append(rows, d.malformed(r, u, u.data, deadletter.Faultf(deadletter.ReasonFeatureTooLarge, "",
			"the record has %d bytes, more than a feature of MAX_FEATURE_BYTES (%d) needs; its first %d are kept, and its SHA-256 is %s", u.length, d.limits.MaxFeatureBytes, len(u.data), u.sha256)))
	case u.form == formFeature:
		return d.feature(u, from, rows)
	default:
		return d.value(u, from, rows)
	}
}

// blank is a row of u with what the object says about all its records.
func (d *decoder) blank(u *unit) archive.Row {
	return archive.Row{
		Record: deadletter.Record{
			BatchID: d.defaults.BatchID, FailedRule: d.defaults.FailedRule, ErrorType: d.defaults.ErrorType,
			ErrorMessage: d.defaults.ErrorMessage, SourceCRS: d.defaults.SourceCRS,
			FirstSeen: d.object.LastModified, ArrivedAt: d.object.LastModified,
			SourceObject: d.uri, SourceOffset: u.offset,
		},
		SourceLength: u.length, SourceSHA256: u.sha256,
	}
}

// malformed makes r a row that is quarantined on arrival, with what the pipeline
// said behind what is wrong with it.
func (d *decoder) malformed(r archive.Row, u *unit, payload []byte, fault *deadletter.Fault) archive.Row {
	message := fault.Detail
	if r.ErrorType != "" || r.ErrorMessage != "" {
		message += "; the pipeline said: " + strings.Trim(r.ErrorType+": "+r.ErrorMessage, ": ")
	}
	if fault.Rule != "" {
		r.FailedRule = fault.Rule
	}
	r.Quarantined, r.ErrorType, r.ErrorMessage = true, string(fault.Reason), message
	r.Payload = payload
	r.Geometry, r.EPSG, r.GeomHash = nil, 0, ""
	if len(payload) == 0 {
		r.Payload = nil
	}
	return r
}

// feature decodes u as a bare feature.
func (d *decoder) feature(u *unit, from *envelope, rows []archive.Row) []archive.Row {
	r := d.blank(u)
	if from != nil {
		from.describe(d, &r)
	}
	if u.within != nil && (u.within.crs != nil || u.within.double) {
		if u.within.double {
			return append(rows, d.malformed(r, u, u.data, deadletter.Faultf(deadletter.ReasonAmbiguousJSON, geojson.RuleFeature, "the collection has two different members \"crs\"")))
		}
		if jsonscan.KindOf(u.within.crs) == jsonscan.KindNull {
			r.SourceCRS = nil // GeoJSON 2008: no CRS can be assumed
		} else if name := d.member(u.within.crs).name; name != "" {
			r.SourceCRS = d.word([]byte(name))
		} else {
			r.SourceCRS = d.word(u.within.crs)
		}
	}
	own := u.within == nil || u.within.crs == nil
	row, fault := d.take(r, u, u.data, own)
	if fault != nil && u.form != formValue {
		if at := d.split(u, fault); at > 0 {
			return d.salvage(u, at, from, rows)
		}
	}
	return append(rows, row)
}

// take completes r with the feature that payload holds. ownCRS says that a CRS the
// feature names itself comes before r.SourceCRS, which is a mere default then. The
// fault is why the row is malformed, nil where it is not.
func (d *decoder) take(r archive.Row, u *unit, payload []byte, ownCRS bool) (archive.Row, *deadletter.Fault) {
	f, err := geojson.Decode(payload, geojson.Limits{MaxBytes: int(d.limits.MaxFeatureBytes)})
	if r.FeatureID == "" && f.HasID {
		r.FeatureID = identifier(f.ID)
	}
	if fault, ok := deadletter.AsFault(err); ok {
		switch fault.Reason {
		case deadletter.ReasonFeatureTooLarge:
			sum := sha256.Sum256(u.data)
			r.SourceSHA256 = hex.EncodeToString(sum[:])
			fault = deadletter.Faultf(fault.Reason, fault.Rule, "%s; its first %d bytes are kept, and its record's SHA-256 is %s", fault.Detail, Prefix, r.SourceSHA256)
			return d.malformed(r, u, payload[:min(len(payload), Prefix)], fault), fault
		case deadletter.ReasonInvalidJSON, deadletter.ReasonInvalidUTF8, deadletter.ReasonNotAFeature:
			return d.malformed(r, u, payload, fault), fault
		}
		// The rest is for the replay to judge, under its contract.
		r.Payload = payload
		if ownCRS && f.CRS != nil {
			r.SourceCRS = nil
		}
		return r, nil
	}
	r.Payload = payload
	if ownCRS && f.CRS != nil {
		r.SourceCRS = nil
	}
	if r.EPSG = d.sourceCRS(r.SourceCRS, f); r.EPSG != 0 {
		r.Geometry = f.Geometry
		if r.FeatureID != "" {
			r.GeomHash = deadletter.GeomHash(r.FeatureID, r.EPSG, r.Geometry)
		}
	}
	return r, nil
}

// sourceCRS resolves the CRS of a feature, 0 where it has none that is certain: the
// record's, else the feature's own, and none where they differ. The replay resolves it
// again, and says why it cannot.
func (d *decoder) sourceCRS(record *string, f *geojson.Feature) int {
	code := 0
	if record != nil {
		if code = d.code(*record); code == 0 {
			return 0
		}
	}
	for _, raw := range [][]byte{f.CRS, f.GeometryCRS} {
		if raw == nil {
			continue
		}
		switch own := d.member(raw).code; {
		case own == 0:
			return 0
		case code == 0:
			code = own
		case code != own:
			return 0
		}
	}
	return code
}

func (d *decoder) code(name string) int {
	if code, ok := d.codes[name]; ok {
		return code
	}
	code, err := crs.Resolve(name)
	if err != nil {
		code = 0
	}
	if len(d.codes) >= maxWords {
		clear(d.codes)
	}
	d.codes[name] = code
	return code
}

func (d *decoder) member(raw []byte) member {
	if m, ok := d.members[string(raw)]; ok {
		return m
	}
	name, code, err := crs.ResolveMember(raw)
	if err != nil {
		code = 0
	}
	if len(d.members) >= maxWords {
		clear(d.members)
	}
	m := member{name, code}
	d.members[string(raw)] = m
	return m
}

// split returns where the next feature, or document, begins in a unit that is
// broken so that it may have swallowed it; 0 where there is none.
func (d *decoder) split(u *unit, fault *deadletter.Fault) int {
	var e *jsonscan.Error
	if fault.Reason != deadletter.ReasonInvalidJSON || !errors.As(fault, &e) {
		return 0
	}
	at := min(e.Offset, len(u.data))
	if u.form == formDocument {
		if i := bytes.Index(u.data[at:], documentStart); i >= 0 {
			return at + i + 1
		}
		return 0
	}
	if m := featureStart.FindIndex(u.data[at:]); m != nil {
		return at + m[0]
	}
	return 0
}

// salvage takes a broken unit apart at a byte: what is before it is malformed, what
// follows is read as if nothing had been.
func (d *decoder) salvage(u *unit, at int, from *envelope, rows []archive.Row) []archive.Row {
	head := *u
	head.form = formBroken
	head.data = bytes.TrimRight(u.data[:at], whitespace+",")
	head.length = int64(len(head.data))
	head.fault = deadletter.Faultf(deadletter.ReasonInvalidJSON, geojson.RuleFeature, "%v; the next record was looked for behind it", breakOf(head.data))
	rows = d.unit(&head, from, rows)
	f := inMemory(u.data[at:], u.offset+int64(at), d.limits)
	var err error
	if u.form == formDocument {
		err = f.values()
	} else {
		err = f.elementsOn(formFeature, u.within)
	}
	if errors.Is(err, errBreak) && len(f.rest()) > 0 {
		f.broken(f.pos, untilEnd, breakFault("the collection", err))
	}
	return d.units(f.units, from, u, rows)
}

func breakOf(b []byte) error {
	s := jsonscan.New(b, maxDepth)
	s.Value()
	return s.End()
}

// inMemory is a framer over text that is all there, which lies at an offset of the object.
func inMemory(text []byte, offset int64, limits Limits) *framer {
	return &framer{limits: limits, delim: noDelim, buf: text, end: len(text), base: offset, err: io.EOF}
}

// fields are the members of a record that mean something, as written; nil where absent.
type fields struct {
	typ, geometry                                       []byte
	feature, featureGeoJSON                             []byte
	featureID, batchID                                  []byte
	failedRule, errorType, errorMessage, attempts       []byte
	sourceCRS, firstSeen, dlqID                         []byte
	requestContext, requestPayload                      []byte
	responseContext, responsePayload, payload, occurred []byte

	doubled string // a member that occurs twice and says different things
}

// set takes the value of a member.
func (f *fields) set(name string, value []byte) {
	var field *[]byte
	switch name {
	case "type":
		field = &f.typ
	case "geometry":
		field = &f.geometry
	case "feature":
		field = &f.feature
	case "feature_geojson":
		field = &f.featureGeoJSON
	case "feature_id":
		field = &f.featureID
	case "batch_id":
		field = &f.batchID
	case "failed_rule":
		field = &f.failedRule
	case "error_type":
		field = &f.errorType
	case "error_message":
		field = &f.errorMessage
	case "attempts":
		field = &f.attempts
	case "source_crs":
		field = &f.sourceCRS
	case "first_seen":
		field = &f.firstSeen
	case "dlq_id":
		field = &f.dlqID
	case "requestContext":
		field = &f.requestContext
	case "requestPayload":
		field = &f.requestPayload
	case "responseContext":
		field = &f.responseContext
	case "responsePayload":
		field = &f.responsePayload
	case "payload":
		field = &f.payload
	case "timestamp":
		field = &f.occurred
	default:
		return
	}
	if *field == nil {
		*field = value
	} else if f.doubled == "" && value != nil && !bytes.Equal(*field, value) {
		f.doubled = name
	}
}

// value decodes u as a JSON text of its own.
func (d *decoder) value(u *unit, from *envelope, rows []archive.Row) []archive.Row {
	var f fields
	s := jsonscan.New(u.data, maxDepth)
	switch s.Kind() {
	case jsonscan.KindObject:
		for name := range s.Members() {
			f.set(string(name), s.Value())
		}
	case jsonscan.KindArray:
		if u.form != formElement {
			return d.elements(u, from, rows)
		}
		s.Value()
	default:
		s.Value()
	}
	if err := s.End(); err != nil {
		return d.notJSON(u, from, err, rows)
	}
	kind, _ := jsonscan.Unquote(f.typ)
	isRecord := present(f.feature) || present(f.featureGeoJSON)
	switch {
	case string(kind) == "FeatureCollection" && !isRecord:
		return d.collection(u, from, rows)
	case string(kind) == "Feature" && (f.geometry != nil || !isRecord):
		return d.feature(u, from, rows)
	case isRecord:
		return append(rows, d.record(u, &f, from))
	case jsonscan.KindOf(f.requestContext) == jsonscan.KindObject:
		return d.destination(u, &f, from, rows)
	case f.featureID != nil || f.batchID != nil || f.failedRule != nil || f.errorType != nil || f.errorMessage != nil:
		r := d.blank(u)
		d.describe(&r, &f, from)
		return append(rows, d.malformed(r, u, u.data, deadletter.Faultf(deadletter.ReasonNotAFeature, geojson.RuleFeature,
			"the record has neither feature nor feature_geojson")))
	}
	// Whatever it is, it is no feature; the decoder of features says it best.
	return d.feature(u, from, rows)
}

// present reports whether a member is there and not null.
func present(raw []byte) bool { return raw != nil && jsonscan.KindOf(raw) != jsonscan.KindNull }

// notJSON keeps u, which is no JSON. A broken collection is still taken apart, and of
// a broken record the ids that can be read are.
func (d *decoder) notJSON(u *unit, from *envelope, err error, rows []archive.Row) []archive.Row {
	if isCollection(u.data) {
		return d.collection(u, from, rows)
	}
	fault := notJSONFault(u.data, err)
	if u.form == formDocument {
		if at := d.split(u, fault); at > 0 {
			return d.salvage(u, at, from, rows)
		}
	}
	r := d.blank(u)
	if from != nil {
		from.describe(d, &r)
	}
	d.readable(&r, u.data)
	return append(rows, d.malformed(r, u, u.data, fault))
}

func notJSONFault(data []byte, err error) *deadletter.Fault {
	reason, detail := deadletter.ReasonInvalidJSON, err.Error()
	if !utf8.Valid(data) {
		reason = deadletter.ReasonInvalidUTF8
		if e := jsonscan.Valid(data, maxDepth); e != nil {
			detail = e.Error()
		}
	}
	return &deadletter.Fault{Reason: reason, Rule: geojson.RuleFeature, Detail: detail, Err: err}
}

// readable takes the fields of a broken record that can be read in spite of it, by
// brackets, so that it counts for its batch.
func (d *decoder) readable(r *archive.Row, b []byte) {
	if len(b) == 0 || b[0] != '{' {
		return
	}
	var f fields
	for i := 1; i < len(b); {
		i += leading(b[i:])
		if i < len(b) && b[i] == ',' {
			i++
			continue
		}
		if i >= len(b) || b[i] != '"' {
			break
		}
		name, n := cut(b[i:])
		i += n
		i += leading(b[i:])
		if i >= len(b) || b[i] != ':' {
			break
		}
		i++
		i += leading(b[i:])
		value, n := cut(b[i:])
		if i += n; n == 0 {
			break
		}
		text, err := jsonscan.Unquote(name)
		if err == nil && jsonscan.Valid(value, maxDepth) == nil {
			f.set(string(text), value)
		}
	}
	f.doubled = ""
	d.describe(r, &f, nil)
}

// collection takes the collection that u is apart.
func (d *decoder) collection(u *unit, from *envelope, rows []archive.Row) []archive.Row {
	f := inMemory(u.data, u.offset, d.limits)
	return d.parts(u, f, f.collection, from, rows)
}

// elements takes the array that u is apart.
func (d *decoder) elements(u *unit, from *envelope, rows []archive.Row) []archive.Row {
	f := inMemory(u.data, u.offset, d.limits)
	return d.parts(u, f, func() error { return f.elements(formElement, nil) }, from, rows)
}

func (d *decoder) parts(u *unit, f *framer, frame func() error, from *envelope, rows []archive.Row) []archive.Row {
	err := frame()
	if f.pos += leading(f.rest()); err == nil && len(f.rest()) > 0 {
		err = fmt.Errorf("%w: found %q behind it", errBreak, excerpt(f.rest()))
	}
	if err != nil {
		f.broken(f.pos, untilEnd, breakFault("the text", err))
	}
	return d.units(f.units, from, u, rows)
}

// units appends what the parts of u hold. What an event wrapped has no place of its
// own in the object, so it gets the event's.
func (d *decoder) units(parts []unit, from *envelope, u *unit, rows []archive.Row) []archive.Row {
	for i := range parts {
		part := &parts[i]
		if from != nil {
			part.offset, part.length = u.offset, u.length
		}
		rows = d.unit(part, from, rows)
	}
	return rows
}

// record decodes a dead-letter record.
func (d *decoder) record(u *unit, f *fields, from *envelope) archive.Row {
	r := d.blank(u)
	d.describe(&r, f, from)
	payload, fault := featureOf(f)
	if fault != nil && payload == nil {
		payload = u.data
	}
	if fault == nil && f.doubled != "" {
		fault = deadletter.Faultf(deadletter.ReasonAmbiguousJSON, geojson.RuleFeature, "member %q of the record occurs twice with different values", f.doubled)
		if f.doubled == "feature" || f.doubled == "feature_geojson" {
			payload = u.data
		}
	}
	if fault != nil {
		return d.malformed(r, u, payload, fault)
	}
	// The default of the object is one for features that name no CRS, in the record or themselves.
	r, _ = d.take(r, u, payload, f.sourceCRS == nil)
	return r
}

// featureOf returns the bytes of a record's feature. Both members take it in both
// ways, as text in a string and as an object.
func featureOf(f *fields) (payload []byte, fault *deadletter.Fault) {
	for _, raw := range [][]byte{f.featureGeoJSON, f.feature} {
		if !present(raw) {
			continue
		}
		text := raw
		if jsonscan.KindOf(raw) == jsonscan.KindString {
			var err error
			if text, err = jsonscan.Unquote(raw); err != nil {
				return raw, &deadletter.Fault{Reason: deadletter.ReasonInvalidUTF8, Rule: geojson.RuleFeature, Err: err,
					Detail: fmt.Sprintf("the feature's text is no UTF-8: %v", err)}
			}
		}
		if payload != nil && !bytes.Equal(payload, text) {
			return nil, deadletter.Faultf(deadletter.ReasonAmbiguousJSON, geojson.RuleFeature, "feature and feature_geojson are two different features")
		}
		payload = text
	}
	return payload, nil
}

// describe puts into r what a record says beside its feature.
func (d *decoder) describe(r *archive.Row, f *fields, from *envelope) {
	if from != nil {
		from.describe(d, r)
	}
	if s, ok := d.label(f.batchID); ok {
		r.BatchID = s
	}
	if b := textOf(f.featureID); len(b) > 0 {
		r.FeatureID = identifier(string(b))
	}
	if b := textOf(f.failedRule); len(b) > 0 {
		r.FailedRule = *d.word(b)
	}
	if b := textOf(f.errorType); len(b) > 0 {
		r.ErrorType = *d.word(b)
	}
	if b := textOf(f.errorMessage); len(b) > 0 {
		r.ErrorMessage = string(b)
	}
	if n, ok := count(f.attempts); ok {
		r.Attempts = n
	}
	if f.sourceCRS != nil {
		r.SourceCRS = nil
		if name := textOf(f.sourceCRS); utf8.Valid(name) && present(f.sourceCRS) {
			r.SourceCRS = d.word(name)
		} else if present(f.sourceCRS) {
			r.SourceCRS = d.word([]byte(deadletter.Text(string(name))))
		}
	}
	if t, ok := instant(f.firstSeen); ok {
		r.FirstSeen = t
	}
	if id, err := deadletter.ParseUUID(string(textOf(f.dlqID))); err == nil {
		r.DLQID = id // the nil UUID is none; finish sees to it
	}
}

// label returns an id that repeats from record to record.
func (d *decoder) label(raw []byte) (string, bool) {
	b := textOf(raw)
	if len(b) == 0 {
		return "", false
	}
	if len(b) > maxIdentifier || !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
		return identifier(string(b)), true
	}
	return *d.word(b), true
}

// textOf returns what a member of any kind says as text: a string's text, and
// anything else as it is written; nil for null.
func textOf(raw []byte) []byte {
	switch jsonscan.KindOf(raw) {
	case jsonscan.KindInvalid, jsonscan.KindNull:
		return nil
	case jsonscan.KindString:
		if text, err := jsonscan.Unquote(raw); err == nil {
			return text
		}
		return raw[1 : len(raw)-1] // an escape that names no character stays as it is written
	}
	return raw
}

// count reads a number of attempts, as a number or in a string.
func count(raw []byte) (int, bool) {
	b := textOf(raw)
	if len(b) == 0 || len(b) > 32 {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsNaN(v) {
		return 0, false
	}
	return int(max(0, min(v, math.MaxInt32))), true
}

// instant reads an RFC 3339 time, to the microsecond that PostgreSQL keeps.
func instant(raw []byte) (time.Time, bool) {
	if jsonscan.KindOf(raw) != jsonscan.KindString {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, strings.ToUpper(string(textOf(raw))))
	if err != nil || t.Year() < 1 {
		return time.Time{}, false
	}
	return t.UTC().Truncate(time.Microsecond), true
}

// finish gives rows, the first of which is record number first of the object, what
// hangs on their ordinals, and makes their texts storable.
func (d *decoder) finish(rows []archive.Row, first int64) (malformed int64) {
	for i := range rows {
		r := &rows[i]
		r.SourceRecord = first + int64(i)
		if r.DLQID == (deadletter.UUID{}) {
			r.DLQID = deadletter.RecordID(d.object.Bucket, d.object.Key, d.object.Version(), r.SourceRecord)
		}
		if r.FeatureID == "" {
			r.FeatureID = identifier(fmt.Sprintf("%s#%d", d.object.Key, r.SourceRecord))
			if r.EPSG != 0 {
				r.GeomHash = deadletter.GeomHash(r.FeatureID, r.EPSG, r.Geometry)
			}
		}
		if r.Quarantined {
			malformed++
			r.ErrorMessage = fmt.Sprintf("record %d at byte %d: %s", r.SourceRecord, r.SourceOffset, r.ErrorMessage)
		}
		r.FailedRule, r.ErrorType, r.ErrorMessage = deadletter.Label(r.FailedRule), deadletter.Label(r.ErrorType), deadletter.Message(r.ErrorMessage)
	}
	return malformed
}

// Locate sets r.Geometry from its payload, for a record that was read back from the
// archive: one whose CRS was resolved has a geometry that can be read.
func Locate(r *deadletter.Record) {
	if r.EPSG == 0 || r.Geometry != nil {
		return
	}
	if f, err := geojson.Decode(r.Payload, geojson.Limits{MaxBytes: len(r.Payload) + 1}); err == nil {
		r.Geometry = f.Geometry
	}
}
