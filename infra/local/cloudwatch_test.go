package local_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"geodlq/infra/local"
)

// startRecorder returns a recorder and a client that differs from the SDK's
// default only in its address and credentials.
func startRecorder(t *testing.T) (*local.CloudWatch, *cloudwatch.Client) {
	t.Helper()
	recorder, err := local.StartCloudWatch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := recorder.Close(); err != nil {
			t.Error(err)
		}
	})
	return recorder, cloudwatch.New(cloudwatch.Options{
		Region:       "us-east-1",
		BaseEndpoint: aws.String(recorder.URL()),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "local", SecretAccessKey: "local"}, nil
		}),
	})
}

// datum returns a valid datum, changed by f.
func datum(f func(*types.MetricDatum)) types.MetricDatum {
	d := types.MetricDatum{MetricName: aws.String("QueueDepth"), Value: aws.Float64(3)}
	if f != nil {
		f(&d)
	}
	return d
}

func repeat(d types.MetricDatum, n int) []types.MetricDatum {
	data := make([]types.MetricDatum, n)
	for i := range data {
		data[i] = d
	}
	return data
}

func dimensions(n int) []types.Dimension {
	var all []types.Dimension
	for i := range n {
		all = append(all, types.Dimension{Name: aws.String(fmt.Sprint("d", i)), Value: aws.String("v")})
	}
	return all
}

func TestCloudWatchKeepsWhatItIsSent(t *testing.T) {
	t.Parallel()
	recorder, client := startRecorder(t)
	// Fractions of a second and a long list: the SDK compresses what is over 10 kB.
	stamp := time.Now().Add(-90 * time.Minute).UTC().Truncate(time.Millisecond)
	data := []types.MetricDatum{
		datum(func(d *types.MetricDatum) {
			d.Timestamp = &stamp
			d.Unit = types.StandardUnitCount
			d.StorageResolution = aws.Int32(60)
			d.Dimensions = []types.Dimension{{Name: aws.String("Service"), Value: aws.String("geodlq")}, {Name: aws.String("Reason"), Value: aws.String("unknown_crs")}}
		}),
		datum(func(d *types.MetricDatum) { d.Value, d.Values, d.Counts = nil, []float64{1, 2.5}, []float64{3, 4} }),
		datum(func(d *types.MetricDatum) {
			d.Value = nil
			d.StatisticValues = &types.StatisticSet{SampleCount: aws.Float64(2), Sum: aws.Float64(3), Minimum: aws.Float64(1), Maximum: aws.Float64(2)}
		}),
	}
	want := []local.Datum{
		{Name: "QueueDepth", Value: aws.Float64(3), Timestamp: &stamp, Unit: "Count", StorageResolution: 60,
			Dimensions: map[string]string{"Service": "geodlq", "Reason": "unknown_crs"}},
		{Name: "QueueDepth", Values: []float64{1, 2.5}, Counts: []float64{3, 4}},
		{Name: "QueueDepth", Statistics: &local.StatisticSet{SampleCount: 2, Sum: 3, Minimum: 1, Maximum: 2}},
	}
	for len(data) < 1000 {
		data = append(data, datum(nil))
		want = append(want, local.Datum{Name: "QueueDepth", Value: aws.Float64(3)})
	}
	if _, err := client.PutMetricData(t.Context(), &cloudwatch.PutMetricDataInput{Namespace: aws.String("GeoDLQ"), MetricData: data}); err != nil {
		t.Fatal(err)
	}
	puts := recorder.Puts("GeoDLQ")
	if len(puts) != 1 || puts[0].Namespace != "GeoDLQ" {
		t.Fatalf("%d puts; want one", len(puts))
	}
	if diff := cmp.Diff(want, puts[0].Data); diff != "" {
		t.Errorf("data (-sent +recorded):\n%s", diff)
	}
	if other := recorder.Puts("Other"); len(other) != 0 {
		t.Errorf("%d puts in a namespace nobody wrote to", len(other))
	}

	// The same through the JSON endpoint.
	response, err := http.Get(recorder.URL() + "/recorded?namespace=GeoDLQ")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var read []local.Put
	if err := json.NewDecoder(response.Body).Decode(&read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(puts, read, cmpopts.EquateApproxTime(0)); diff != "" {
		t.Errorf("puts (-recorded +read back):\n%s", diff)
	}
}

func TestCloudWatchRefusesWhatCloudWatchRefuses(t *testing.T) {
	t.Parallel()
	recorder, client := startRecorder(t)
	const (
		value       = "InvalidParameterValue"
		combination = "InvalidParameterCombination"
		required    = "MissingParameter"
	)
	one := func(f func(*types.MetricDatum)) []types.MetricDatum { return []types.MetricDatum{datum(f)} }
	at := func(d time.Duration) []types.MetricDatum {
		return one(func(m *types.MetricDatum) { m.Timestamp = aws.Time(time.Now().Add(d)) })
	}
	long := strings.Repeat("n", 256)
	for _, c := range []struct {
		name      string
		namespace string // GeoDLQ when empty
		data      []types.MetricDatum
		code      string // "" when it is accepted
	}{
		{name: "1000 data", data: repeat(datum(nil), 1000)},
		{name: "1001 data", data: repeat(datum(nil), 1001), code: value},
		{name: "no data", data: []types.MetricDatum{}, code: required},
		{name: "not a number", data: one(func(d *types.MetricDatum) { d.Value = aws.Float64(math.NaN()) }), code: value},
		{name: "infinite", data: one(func(d *types.MetricDatum) { d.Value = aws.Float64(math.Inf(-1)) }), code: value},
		{name: "2^360", data: one(func(d *types.MetricDatum) { d.Value = aws.Float64(math.Ldexp(1, 360)) })},
		{name: "over 2^360", data: one(func(d *types.MetricDatum) { d.Value = aws.Float64(math.Ldexp(1.001, 360)) }), code: value},
		{name: "not a number among values", data: one(func(d *types.MetricDatum) { d.Value, d.Values = nil, []float64{1, math.NaN()} }), code: value},
		{name: "almost two weeks old", data: at(-14*24*time.Hour + time.Minute)},
		{name: "over two weeks old", data: at(-14*24*time.Hour - time.Minute), code: value},
		{name: "almost two hours ahead", data: at(2*time.Hour - time.Minute)},
		{name: "over two hours ahead", data: at(2*time.Hour + time.Minute), code: value},
		{name: "30 dimensions", data: one(func(d *types.MetricDatum) { d.Dimensions = dimensions(30) })},
		{name: "31 dimensions", data: one(func(d *types.MetricDatum) { d.Dimensions = dimensions(31) }), code: value},
		{name: "the same dimension twice", data: one(func(d *types.MetricDatum) { d.Dimensions = append(dimensions(2), dimensions(1)...) }), code: value},
		{name: "an empty dimension value", data: one(func(d *types.MetricDatum) {
			d.Dimensions = []types.Dimension{{Name: aws.String("Reason"), Value: aws.String("")}}
		}), code: value},
		{name: "an empty dimension name", data: one(func(d *types.MetricDatum) {
			d.Dimensions = []types.Dimension{{Name: aws.String(" "), Value: aws.String("v")}}
		}), code: value},
		{name: "150 values", data: one(func(d *types.MetricDatum) { d.Value, d.Values = nil, make([]float64, 150) })},
		{name: "151 values", data: one(func(d *types.MetricDatum) { d.Value, d.Values = nil, make([]float64, 151) }), code: value},
		{name: "more values than counts", data: one(func(d *types.MetricDatum) { d.Value, d.Values, d.Counts = nil, []float64{1, 2}, []float64{1} }), code: value},
		{name: "a value and values", data: one(func(d *types.MetricDatum) { d.Values = []float64{1} }), code: combination},
		{name: "no value", data: one(func(d *types.MetricDatum) { d.Value = nil }), code: required},
		{name: "an unknown unit", data: one(func(d *types.MetricDatum) { d.Unit = "Furlongs" }), code: value},
		{name: "a storage resolution of 5 s", data: one(func(d *types.MetricDatum) { d.StorageResolution = aws.Int32(5) }), code: value},
		{name: "statistics without samples", data: one(func(d *types.MetricDatum) {
			d.Value, d.StatisticValues = nil, &types.StatisticSet{SampleCount: aws.Float64(0), Sum: aws.Float64(0), Minimum: aws.Float64(0), Maximum: aws.Float64(0)}
		}), code: value},
		{name: "an empty metric name", data: one(func(d *types.MetricDatum) { d.MetricName = aws.String("") }), code: required},
		{name: "a long metric name", data: one(func(d *types.MetricDatum) { d.MetricName = &long }), code: value},
		{name: "a metric name beyond ASCII", data: one(func(d *types.MetricDatum) { d.MetricName = aws.String("Länge") }), code: value},
		{name: "a namespace of AWS", namespace: "AWS/S3", data: one(nil), code: value},
		{name: "a namespace with a leading colon", namespace: ":x", data: one(nil), code: value},
		{name: "a blank namespace", namespace: "  ", data: one(nil), code: value},
		{name: "a long namespace", namespace: long, data: one(nil), code: value},
		{name: "over 1 MB", data: repeat(datum(func(d *types.MetricDatum) {
			d.Dimensions = []types.Dimension{{Name: aws.String("Reason"), Value: aws.String(strings.Repeat("v", 1024))}}
		}), 1000), code: "RequestEntityTooLarge"},
	} {
		t.Run(c.name, func(t *testing.T) {
			namespace := c.namespace
			if namespace == "" {
				namespace = "GeoDLQ"
			}
			before := len(recorder.Puts(""))
			_, err := client.PutMetricData(t.Context(), &cloudwatch.PutMetricDataInput{Namespace: &namespace, MetricData: c.data})
			kept := len(recorder.Puts("")) - before
			if c.code == "" {
				if err != nil || kept != 1 {
					t.Errorf("error %v, %d puts kept; want it accepted", err, kept)
				}
				return
			}
			var refused smithy.APIError
			if !errors.As(err, &refused) || refused.ErrorCode() != c.code || refused.ErrorMessage() == "" {
				t.Errorf("error %v; want %s", err, c.code)
			}
			if kept != 0 {
				t.Error("it was kept all the same")
			}
		})
	}
}

func TestCloudWatchErrorsHaveTheSDKsTypes(t *testing.T) {
	t.Parallel()
	_, client := startRecorder(t)
	_, err := client.PutMetricData(t.Context(), &cloudwatch.PutMetricDataInput{
		Namespace:  aws.String("GeoDLQ"),
		MetricData: []types.MetricDatum{datum(func(d *types.MetricDatum) { d.Value = aws.Float64(math.Inf(1)) })},
	})
	var invalid *types.InvalidParameterValueException
	if !errors.As(err, &invalid) || !strings.Contains(invalid.ErrorMessage(), "MetricData.member.1.Value") {
		t.Errorf("%v (%T); want an InvalidParameterValueException that names the value", err, err)
	}
	if _, err := client.ListMetrics(t.Context(), &cloudwatch.ListMetricsInput{}); err == nil {
		t.Error("an operation that the recorder does not know succeeded")
	}
}

func TestCloudWatchRefusesOtherProtocols(t *testing.T) {
	t.Parallel()
	recorder, _ := startRecorder(t)
	for _, c := range []struct {
		name    string
		headers map[string]string
		body    string
	}{
		{name: "another protocol", headers: map[string]string{"Content-Type": "application/json"}, body: `{"Namespace":"GeoDLQ"}`},
		{name: "no CBOR", headers: map[string]string{"Smithy-Protocol": "rpc-v2-cbor"}, body: "\xff\xff"},
		{name: "no gzip", headers: map[string]string{"Smithy-Protocol": "rpc-v2-cbor", "Content-Encoding": "gzip"}, body: "plain"},
		{name: "an unknown encoding", headers: map[string]string{"Smithy-Protocol": "rpc-v2-cbor", "Content-Encoding": "br"}, body: "plain"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			request, err := http.NewRequest(http.MethodPost, recorder.URL()+"/service/GraniteServiceVersion20100801/operation/PutMetricData", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range c.headers {
				request.Header.Set(name, value)
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != http.StatusBadRequest || !bytes.Contains(body, []byte("SerializationException")) {
				t.Errorf("status %d, body %q; want 400 and a SerializationException", response.StatusCode, body)
			}
		})
	}
}
