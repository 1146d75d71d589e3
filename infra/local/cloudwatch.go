package local

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
	"github.com/aws/smithy-go/encoding/cbor"
)

// CloudWatch is a server that stands in for Amazon CloudWatch: it accepts
// PutMetricData in the protocol of the SDK's default client, refuses what
// CloudWatch refuses, and keeps what it accepted.
//
// GET /recorded gives the accepted requests as a JSON array of [Put], oldest
// first; GET /recorded?namespace=N those of one namespace.
type CloudWatch struct {
	endpoint
	now func() time.Time

	mu   sync.Mutex
	puts []Put
}

// Put is one accepted PutMetricData request.
type Put struct {
	Namespace string    `json:"namespace"`
	Received  time.Time `json:"received"`
	Data      []Datum   `json:"data"`
}

// Datum is one element of a [Put]. Exactly one of Value, Statistics and Values is set.
type Datum struct {
	Name              string            `json:"name"`
	Dimensions        map[string]string `json:"dimensions,omitempty"`
	Timestamp         *time.Time        `json:"timestamp,omitempty"` // nil: CloudWatch takes the time of arrival
	Value             *float64          `json:"value,omitempty"`
	Statistics        *StatisticSet     `json:"statistics,omitempty"`
	Values            []float64         `json:"values,omitempty"`
	Counts            []float64         `json:"counts,omitempty"` // empty: each value once
	Unit              string            `json:"unit,omitempty"`
	StorageResolution int               `json:"storage_resolution,omitempty"` // seconds; 0: the default, 60
}

// StatisticSet is a datum given as a summary.
type StatisticSet struct {
	SampleCount float64 `json:"sample_count"`
	Sum         float64 `json:"sum"`
	Minimum     float64 `json:"minimum"`
	Maximum     float64 `json:"maximum"`
}

// StartCloudWatch starts a recorder.
func StartCloudWatch() (*CloudWatch, error) {
	c := &CloudWatch{now: time.Now}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /recorded", c.recorded)
	mux.HandleFunc("POST /service/GraniteServiceVersion20100801/operation/{operation}", c.operation)
	if err := c.serve("CloudWatch", mux); err != nil {
		return nil, err
	}
	return c, nil
}

// Puts returns the accepted requests of a namespace, oldest first; of all
// namespaces when it is empty.
func (c *CloudWatch) Puts(namespace string) []Put {
	c.mu.Lock()
	defer c.mu.Unlock()
	puts := []Put{}
	for _, p := range c.puts {
		if namespace == "" || p.Namespace == namespace {
			puts = append(puts, p)
		}
	}
	return puts
}

func (c *CloudWatch) recorded(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.Encode(c.Puts(r.URL.Query().Get("namespace")))
}

// refusal is an error answer of CloudWatch.
type refusal struct {
	status  int
	shape   string // of the rpc-v2-cbor protocol
	code    string // of the Query protocol before it, which SDKs still report
	message string
}

func (r *refusal) Error() string { return r.message }

func invalidValue(format string, args ...any) *refusal {
	return &refusal{http.StatusBadRequest, "InvalidParameterValueException", "InvalidParameterValue", fmt.Sprintf(format, args...)}
}

func invalidCombination(format string, args ...any) *refusal {
	return &refusal{http.StatusBadRequest, "InvalidParameterCombinationException", "InvalidParameterCombination", fmt.Sprintf(format, args...)}
}

func missing(parameter string) *refusal {
	return &refusal{http.StatusBadRequest, "MissingRequiredParameterException", "MissingParameter", fmt.Sprintf("The parameter %s is required.", parameter)}
}

// maxRequestBytes is the size limit of one PutMetricData request. It is applied to
// the body before compression, the stricter reading of the documentation.
const maxRequestBytes = 1 << 20

func (c *CloudWatch) operation(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Smithy-Protocol", "rpc-v2-cbor")
	put, refused := c.read(r)
	if refused == nil {
		c.mu.Lock()
		c.puts = append(c.puts, put)
		c.mu.Unlock()
		w.WriteHeader(http.StatusOK)
		return
	}
	w.Header().Set("Content-Type", "application/cbor")
	w.Header().Set("X-Amzn-Query-Error", refused.code+";Sender")
	w.WriteHeader(refused.status)
	w.Write(cbor.Encode(cbor.Map{
		"__type":  cbor.String("com.amazonaws.cloudwatch#" + refused.shape),
		"message": cbor.String(refused.message),
	}))
}

func (c *CloudWatch) read(r *http.Request) (Put, *refusal) {
	if op := r.PathValue("operation"); op != "PutMetricData" {
		return Put{}, &refusal{http.StatusNotImplemented, "UnknownOperationException", "UnknownOperation",
			fmt.Sprintf("The local CloudWatch recorder knows PutMetricData and no %s.", op)}
	}
	if p := r.Header.Get("Smithy-Protocol"); p != "rpc-v2-cbor" {
		return Put{}, &refusal{http.StatusBadRequest, "SerializationException", "MalformedInput",
			fmt.Sprintf("The protocol %q is not supported: the local CloudWatch recorder speaks rpc-v2-cbor.", p)}
	}
	body, err := requestBody(r)
	if err != nil {
		return Put{}, &refusal{http.StatusBadRequest, "SerializationException", "MalformedInput", err.Error()}
	}
	if len(body) > maxRequestBytes {
		return Put{}, &refusal{http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", "RequestEntityTooLarge",
			fmt.Sprintf("The request is larger than %d bytes.", maxRequestBytes)}
	}
	value, err := cbor.Decode(body)
	if err != nil {
		return Put{}, &refusal{http.StatusBadRequest, "SerializationException", "MalformedInput", "The body is not CBOR: " + err.Error()}
	}
	put, refused := decodePut(value)
	if refused != nil {
		return Put{}, refused
	}
	put.Received = c.now().UTC()
	if refused := put.check(put.Received); refused != nil {
		return Put{}, refused
	}
	return put, nil
}

// requestBody reads one byte more than is allowed, so that the caller can tell.
func requestBody(r *http.Request) ([]byte, error) {
	var body io.Reader = r.Body
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "":
	case "gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return nil, fmt.Errorf("the body is not gzip: %w", err)
		}
		body = unzipped
	default:
		return nil, fmt.Errorf("the content encoding %q is not supported", encoding)
	}
	b, err := io.ReadAll(io.LimitReader(body, maxRequestBytes+1))
	if err != nil {
		return nil, fmt.Errorf("the body cannot be read: %w", err)
	}
	return b, nil
}

// decoder reads CBOR values by the shapes of the CloudWatch API and keeps the
// first thing that did not fit.
type decoder struct{ refused *refusal }

func (d *decoder) fail(where string, v cbor.Value) {
	if d.refused == nil {
		d.refused = &refusal{http.StatusBadRequest, "SerializationException", "MalformedInput", fmt.Sprintf("%s must not be a %T.", where, v)}
	}
}

func absent(v cbor.Value) bool {
	switch v.(type) {
	case nil, *cbor.Nil, *cbor.Undefined:
		return true
	}
	return false
}

func (d *decoder) str(where string, v cbor.Value) string {
	s, ok := v.(cbor.String)
	if !ok && !absent(v) {
		d.fail(where, v)
	}
	return string(s)
}

func (d *decoder) list(where string, v cbor.Value) cbor.List {
	l, ok := v.(cbor.List)
	if !ok && !absent(v) {
		d.fail(where, v)
	}
	return l
}

func (d *decoder) structure(where string, v cbor.Value) cbor.Map {
	m, ok := v.(cbor.Map)
	if !ok && !absent(v) {
		d.fail(where, v)
	}
	return m
}

func (d *decoder) float(where string, v cbor.Value) float64 {
	f, err := cbor.AsFloat64(v)
	if err != nil {
		d.fail(where, v)
	}
	return f
}

func (d *decoder) floats(where string, v cbor.Value) []float64 {
	var out []float64
	for _, e := range d.list(where, v) {
		out = append(out, d.float(where, e))
	}
	return out
}

func decodePut(v cbor.Value) (Put, *refusal) {
	d := &decoder{}
	request := d.structure("The request", v)
	put := Put{Namespace: d.str("Namespace", request["Namespace"])}
	if absent(request["Namespace"]) {
		return put, missing("Namespace")
	}
	if absent(request["MetricData"]) && absent(request["EntityMetricData"]) {
		return put, missing("MetricData")
	}
	put.Data = d.data("MetricData", request["MetricData"])
	for i, e := range d.list("EntityMetricData", request["EntityMetricData"]) {
		where := fmt.Sprintf("EntityMetricData.member.%d", i+1)
		entity := d.structure(where, e)
		put.Data = append(put.Data, d.data(where+".MetricData", entity["MetricData"])...)
	}
	return put, d.refused
}

func (d *decoder) data(where string, v cbor.Value) []Datum {
	var out []Datum
	for i, e := range d.list(where, v) {
		out = append(out, d.datum(fmt.Sprintf("%s.member.%d", where, i+1), e))
	}
	return out
}

func (d *decoder) datum(where string, v cbor.Value) Datum {
	m := d.structure(where, v)
	datum := Datum{
		Name:   d.str(where+".MetricName", m["MetricName"]),
		Unit:   d.str(where+".Unit", m["Unit"]),
		Values: d.floats(where+".Values", m["Values"]),
		Counts: d.floats(where+".Counts", m["Counts"]),
	}
	for i, e := range d.list(where+".Dimensions", m["Dimensions"]) {
		at := fmt.Sprintf("%s.Dimensions.member.%d", where, i+1)
		dimension := d.structure(at, e)
		name := d.str(at+".Name", dimension["Name"])
		if _, twice := datum.Dimensions[name]; twice && d.refused == nil {
			d.refused = invalidValue("The parameter %s.Dimensions names %q twice.", where, name)
		}
		if datum.Dimensions == nil {
			datum.Dimensions = map[string]string{}
		}
		datum.Dimensions[name] = d.str(at+".Value", dimension["Value"])
	}
	if t := m["Timestamp"]; !absent(t) {
		stamp, err := cbor.AsTime(t)
		if err != nil {
			d.fail(where+".Timestamp", t)
		}
		stamp = stamp.UTC()
		datum.Timestamp = &stamp
	}
	if f := m["Value"]; !absent(f) {
		value := d.float(where+".Value", f)
		datum.Value = &value
	}
	if s := m["StatisticValues"]; !absent(s) {
		set := d.structure(where+".StatisticValues", s)
		datum.Statistics = &StatisticSet{
			SampleCount: d.float(where+".StatisticValues.SampleCount", set["SampleCount"]),
			Sum:         d.float(where+".StatisticValues.Sum", set["Sum"]),
			Minimum:     d.float(where+".StatisticValues.Minimum", set["Minimum"]),
			Maximum:     d.float(where+".StatisticValues.Maximum", set["Maximum"]),
		}
	}
	if r := m["StorageResolution"]; !absent(r) {
		resolution, err := cbor.AsInt32(r)
		if err != nil {
			d.fail(where+".StorageResolution", r)
		}
		datum.StorageResolution = int(resolution)
	}
	return datum
}

// Limits of PutMetricData and MetricDatum, from the CloudWatch API reference.
const (
	maxData       = 1000
	maxDimensions = 30
	maxValues     = 150
	maxName       = 255  // characters of a namespace, a metric name, a dimension name
	maxDimension  = 1024 // characters of a dimension value
	maxAge        = 14 * 24 * time.Hour
	maxAhead      = 2 * time.Hour
)

// maxMagnitude bounds a value: CloudWatch takes -2^360 to 2^360.
var maxMagnitude = math.Ldexp(1, 360)

func (p *Put) check(now time.Time) *refusal {
	switch {
	case !plain(p.Namespace, maxName) || strings.HasPrefix(p.Namespace, ":"):
		return invalidValue("The value %q for parameter Namespace is invalid.", p.Namespace)
	case strings.HasPrefix(p.Namespace, "AWS/"):
		return invalidValue("The value AWS/ for parameter Namespace is invalid.")
	case len(p.Data) == 0:
		return missing("MetricData")
	case len(p.Data) > maxData:
		return invalidValue("The collection MetricData must not have a size greater than %d.", maxData)
	}
	for i := range p.Data {
		if refused := p.Data[i].check(fmt.Sprintf("MetricData.member.%d", i+1), now); refused != nil {
			return refused
		}
	}
	return nil
}

func (d *Datum) check(where string, now time.Time) *refusal {
	if d.Name == "" {
		return missing(where + ".MetricName")
	}
	if !plain(d.Name, maxName) {
		return invalidValue("The value %q for parameter %s.MetricName is invalid.", d.Name, where)
	}
	if len(d.Dimensions) > maxDimensions {
		return invalidValue("The collection %s.Dimensions must not have a size greater than %d.", where, maxDimensions)
	}
	for name, value := range d.Dimensions {
		if !plain(name, maxName) || strings.HasPrefix(name, ":") {
			return invalidValue("The value %q for the name of a dimension in %s.Dimensions is invalid.", name, where)
		}
		if !plain(value, maxDimension) {
			return invalidValue("The value %q for the dimension %s in %s.Dimensions is invalid.", value, name, where)
		}
	}
	if t := d.Timestamp; t != nil {
		if t.Before(now.Add(-maxAge)) {
			return invalidValue("The parameter %s.Timestamp must specify a time within the past two weeks.", where)
		}
		if t.After(now.Add(maxAhead)) {
			return invalidValue("The parameter %s.Timestamp must specify a time no more than two hours in the future.", where)
		}
	}
	if d.Unit != "" && !slices.Contains(types.StandardUnit("").Values(), types.StandardUnit(d.Unit)) {
		return invalidValue("The value %q for parameter %s.Unit is invalid.", d.Unit, where)
	}
	if r := d.StorageResolution; r != 0 && r != 1 && r != 60 {
		return invalidValue("The value %d for parameter %s.StorageResolution is invalid.", r, where)
	}
	return d.checkValues(where)
}

func (d *Datum) checkValues(where string) *refusal {
	given := 0
	for _, is := range []bool{d.Value != nil, d.Statistics != nil, len(d.Values) > 0} {
		if is {
			given++
		}
	}
	switch {
	case given == 0:
		return missing(where + ".Value")
	case given > 1:
		return invalidCombination("The parameters %[1]s.Value, %[1]s.StatisticValues and %[1]s.Values are mutually exclusive.", where)
	case len(d.Values) > maxValues:
		return invalidValue("The collection %s.Values must not have a size greater than %d.", where, maxValues)
	case len(d.Counts) > 0 && len(d.Counts) != len(d.Values):
		return invalidValue("The parameters %[1]s.Values and %[1]s.Counts must have the same size.", where)
	}
	numbers := slices.Concat(d.Values, d.Counts)
	if d.Value != nil {
		numbers = append(numbers, *d.Value)
	}
	if s := d.Statistics; s != nil {
		numbers = append(numbers, s.SampleCount, s.Sum, s.Minimum, s.Maximum)
		if s.SampleCount <= 0 || s.Minimum > s.Maximum {
			return invalidValue("The parameter %s.StatisticValues is invalid: SampleCount %g, Minimum %g, Maximum %g.", where, s.SampleCount, s.Minimum, s.Maximum)
		}
	}
	for _, n := range numbers {
		if math.IsNaN(n) || math.Abs(n) > maxMagnitude {
			return invalidValue("The value %g for parameter %s.Value is invalid.", n, where)
		}
	}
	for _, n := range d.Counts {
		if n < 0 {
			return invalidValue("The value %g for parameter %s.Counts is invalid.", n, where)
		}
	}
	return nil
}

// plain reports whether s is what CloudWatch takes as a name: 1 to limit printable
// ASCII characters, not all of them blanks.
func plain(s string, limit int) bool {
	return len(s) <= limit && strings.TrimSpace(s) != "" &&
		!bytes.ContainsFunc([]byte(s), func(r rune) bool { return r < ' ' || r > '~' })
}
