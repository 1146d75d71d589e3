package gauge_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
	"github.com/google/go-cmp/cmp"

	"geodlq/infra/local/localtest"
	"geodlq/shared/telemetry/gauge"
)

func TestMain(m *testing.M) { localtest.Main(m) }

func TestPublish(t *testing.T) {
	t.Parallel()
	recorder := localtest.CloudWatch(t)
	stamp := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	stage := []gauge.Dimension{{Name: "Service", Value: "geodlq"}, {Name: "Stage", Value: "prod"}}
	err := gauge.NewPublisher(recorder.Client(), recorder.Namespace, time.Minute).Publish(t.Context(), []gauge.Metric{
		{Name: "PoisonRate", Dimensions: stage, At: stamp, Unit: types.StandardUnitNone, Value: 0.125},
		{Name: "Active", Dimensions: stage, At: stamp, Unit: types.StandardUnitCount},
		{Name: "TimeToClearSeconds", Dimensions: stage, At: stamp, Unit: types.StandardUnitSeconds, Values: []float64{2, 60}, Counts: []float64{7, 3}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range recorder.Data(t) {
		value := "-"
		if d.Value != nil {
			value = fmt.Sprint(*d.Value)
		}
		if !d.Timestamp.Equal(stamp) {
			t.Errorf("%s is stamped %s, want %s", d.Name, d.Timestamp, stamp)
		}
		got = append(got, fmt.Sprint(d.Name, " ", d.Unit, " ", d.Dimensions, " ", value, " ", d.Values, d.Counts))
	}
	want := []string{
		"PoisonRate None map[Service:geodlq Stage:prod] 0.125 [] []",
		"Active Count map[Service:geodlq Stage:prod] 0 [] []",
		"TimeToClearSeconds Seconds map[Service:geodlq Stage:prod] - [2 60] [7 3]",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestPublishSplitsRequests(t *testing.T) {
	t.Parallel()
	recorder := localtest.CloudWatch(t)
	publisher := gauge.NewPublisher(recorder.Client(), recorder.Namespace, time.Minute)
	plain := make([]gauge.Metric, 2001)
	for i := range plain {
		plain[i] = gauge.Metric{Name: fmt.Sprint("m", i), At: time.Now()}
	}
	distributions := make([]gauge.Metric, 70)
	for i := range distributions {
		distributions[i] = gauge.Metric{Name: fmt.Sprint("d", i), At: time.Now(), Values: make([]float64, 150), Counts: make([]float64, 150)}
	}
	for _, metrics := range [][]gauge.Metric{nil, plain, distributions} {
		if err := publisher.Publish(t.Context(), metrics); err != nil {
			t.Fatal(err)
		}
	}
	var sizes []int
	for _, put := range recorder.Puts(t) {
		sizes = append(sizes, len(put.Data))
	}
	if d := cmp.Diff([]int{1000, 1000, 1, 66, 4}, sizes); d != "" {
		t.Error(d)
	}
}

func TestPublishRefusesWhatCloudWatchWould(t *testing.T) {
	t.Parallel()
	recorder := localtest.CloudWatch(t)
	publisher := gauge.NewPublisher(recorder.Client(), recorder.Namespace, time.Minute)
	now := time.Now()
	for _, tc := range []struct {
		situation string
		metric    gauge.Metric
		why       string
	}{
		{"not a number", gauge.Metric{Name: "m", At: now, Value: math.NaN()}, "NaN"},
		{"infinite", gauge.Metric{Name: "m", At: now, Value: math.Inf(1)}, "Inf"},
		{"not a number in a distribution", gauge.Metric{Name: "m", At: now, Values: []float64{math.NaN()}, Counts: []float64{1}}, "NaN"},
		{"older than two weeks", gauge.Metric{Name: "m", At: now.Add(-14*24*time.Hour - time.Minute)}, "two weeks"},
		{"three hours ahead", gauge.Metric{Name: "m", At: now.Add(3 * time.Hour)}, "two hours"},
		{"never stamped", gauge.Metric{Name: "m"}, "two weeks"},
		{"no name", gauge.Metric{At: now}, "name"},
		{"a dimension without a value", gauge.Metric{Name: "m", At: now, Dimensions: []gauge.Dimension{{Name: "Stage"}}}, "Stage"},
		{"31 dimensions", gauge.Metric{Name: "m", At: now, Dimensions: make([]gauge.Dimension, 31)}, "31 dimensions"},
		{"an empty distribution", gauge.Metric{Name: "m", At: now, Values: []float64{}}, "0 values"},
		{"151 values", gauge.Metric{Name: "m", At: now, Values: make([]float64, 151), Counts: make([]float64, 151)}, "151 values"},
		{"fewer counts than values", gauge.Metric{Name: "m", At: now, Values: []float64{1, 2}, Counts: []float64{1}}, "1 counts"},
		{"a negative count", gauge.Metric{Name: "m", At: now, Values: []float64{1}, Counts: []float64{-1}}, "below 0"},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			t.Parallel()
			err := publisher.Publish(t.Context(), []gauge.Metric{{Name: "good", At: now}, tc.metric})
			if !errors.Is(err, gauge.ErrRefused) || !strings.Contains(err.Error(), tc.why) {
				t.Errorf("error %v, want one that says %q", err, tc.why)
			}
			if n := len(recorder.Data(t)); n > 0 {
				t.Errorf("%d metrics were sent beside the bad one", n)
			}
		})
	}
}

// down is a CloudWatch that never answers.
type down struct{}

func (down) PutMetricData(ctx context.Context, _ *cloudwatch.PutMetricDataInput, _ ...func(*cloudwatch.Options)) (*cloudwatch.PutMetricDataOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestPublishGivesUpWhereThereIsNoRoute(t *testing.T) {
	t.Parallel()
	err := gauge.NewPublisher(down{}, "GeoDLQ", time.Millisecond).Publish(t.Context(), []gauge.Metric{{Name: "m", At: time.Now()}})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"GeoDLQ"`) || !strings.Contains(err.Error(), "endpoint") {
		t.Errorf("error %v, want a deadline that was exceeded, the namespace and a hint", err)
	}
}
