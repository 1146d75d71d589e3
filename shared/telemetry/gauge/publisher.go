// Package gauge publishes metrics to CloudWatch: figures of a closed window, stamped with
// it, so that publishing them again changes no maximum and no average. It stands apart from
// package telemetry so that only who publishes links the CloudWatch client.
package gauge

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
)

// MetricPutter is the operation of CloudWatch that a [Publisher] needs;
// *cloudwatch.Client has it.
type MetricPutter interface {
	PutMetricData(context.Context, *cloudwatch.PutMetricDataInput, ...func(*cloudwatch.Options)) (*cloudwatch.PutMetricDataOutput, error)
}

// Dimension is a name and a value that tell a metric from others of its name. Each
// value is a metric of its own to CloudWatch, so values come from a short list.
type Dimension struct{ Name, Value string }

// Metric is one value, or a distribution of values, of a metric at a time.
type Metric struct {
	Name       string
	Dimensions []Dimension
	At         time.Time
	Unit       types.StandardUnit
	Value      float64
	// Values, when set, are published in place of Value: Counts[i] observations of
	// Values[i], from which CloudWatch computes percentiles.
	Values, Counts []float64
}

// ErrRefused is the class of a metric that CloudWatch would not take; nothing was sent.
var ErrRefused = errors.New("metric that CloudWatch would refuse")

// Publisher puts metrics into one namespace of CloudWatch.
type Publisher struct {
	client    MetricPutter
	namespace string
	timeout   time.Duration
	now       func() time.Time
}

// NewPublisher returns a publisher into namespace. timeout bounds one request with
// its retries: where there is no route to CloudWatch, as in a subnet without the
// endpoint, a request would else use up the invocation.
func NewPublisher(client MetricPutter, namespace string, timeout time.Duration) *Publisher {
	return &Publisher{client: client, namespace: namespace, timeout: timeout, now: time.Now}
}

// Limits of PutMetricData and MetricDatum, from the CloudWatch API reference. A
// request of 1,000 metrics stays far below its 1 MB unless most are distributions.
const (
	maxMetrics    = 1000
	maxWeight     = 10_000 // metrics and values of distributions, of less than 90 bytes each
	maxDimensions = 30
	maxValues     = 150
	maxName       = 255
	maxDimension  = 1024
	maxAge        = 14 * 24 * time.Hour
	maxAhead      = 2 * time.Hour
)

// Publish puts metrics, in as many requests as that takes. All are checked before
// the first request, for one bad value makes CloudWatch refuse the 999 beside it;
// the error is of class [ErrRefused] then. When a later request fails the earlier
// ones have been taken, so a caller that repeats must repeat the same values.
func (p *Publisher) Publish(ctx context.Context, metrics []Metric) error {
	now := p.now()
	for i := range metrics {
		if why := refused(&metrics[i], now); why != "" {
			return fmt.Errorf("%w: %s at %s: %s", ErrRefused, metrics[i].Name, metrics[i].At.Format(time.RFC3339), why)
		}
	}
	for start := 0; start < len(metrics); {
		end, weight := start, 0
		for end < len(metrics) && end-start < maxMetrics {
			weight += 1 + len(metrics[end].Values)
			if weight > maxWeight {
				break
			}
			end++
		}
		if err := p.put(ctx, metrics[start:end]); err != nil {
			return fmt.Errorf("put metrics %d to %d of %d into namespace %q of CloudWatch (is there a route to it, such as the VPC endpoint \"monitoring\", and does the role allow cloudwatch:PutMetricData there?): %w",
				start+1, end, len(metrics), p.namespace, err)
		}
		start = end
	}
	return nil
}

func (p *Publisher) put(ctx context.Context, metrics []Metric) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	data := make([]types.MetricDatum, len(metrics))
	for i := range metrics {
		m := &metrics[i]
		data[i] = types.MetricDatum{MetricName: &m.Name, Timestamp: &m.At, Unit: m.Unit}
		if m.Values != nil {
			data[i].Values, data[i].Counts = m.Values, m.Counts
		} else {
			data[i].Value = &m.Value
		}
		for j := range m.Dimensions {
			data[i].Dimensions = append(data[i].Dimensions, types.Dimension{Name: &m.Dimensions[j].Name, Value: &m.Dimensions[j].Value})
		}
	}
	_, err := p.client.PutMetricData(ctx, &cloudwatch.PutMetricDataInput{Namespace: &p.namespace, MetricData: data})
	return err
}

// refused says why CloudWatch would refuse m; it is empty where it would not.
func refused(m *Metric, now time.Time) string {
	switch {
	case m.Name == "" || len(m.Name) > maxName:
		return fmt.Sprintf("the name has %d characters, want 1 to %d", len(m.Name), maxName)
	case m.At.Before(now.Add(-maxAge)):
		return "the time is more than two weeks ago"
	case m.At.After(now.Add(maxAhead)):
		return "the time is more than two hours ahead"
	case len(m.Dimensions) > maxDimensions:
		return fmt.Sprintf("%d dimensions, want at most %d", len(m.Dimensions), maxDimensions)
	case m.Values != nil && (len(m.Values) == 0 || len(m.Values) > maxValues || len(m.Values) != len(m.Counts)):
		return fmt.Sprintf("%d values with %d counts, want 1 to %d of each", len(m.Values), len(m.Counts), maxValues)
	case slices.ContainsFunc(m.Counts, func(n float64) bool { return n < 0 }):
		return fmt.Sprintf("counts %v, want none below 0", m.Counts)
	}
	for _, d := range m.Dimensions {
		if d.Name == "" || len(d.Name) > maxName || d.Value == "" || len(d.Value) > maxDimension {
			return fmt.Sprintf("dimension %q has the value %q, want 1 to %d and 1 to %d characters", d.Name, d.Value, maxName, maxDimension)
		}
	}
	for _, v := range slices.Concat([]float64{m.Value}, m.Values, m.Counts) {
		// The range of the API reference; infinities are outside it.
		if math.IsNaN(v) || math.Abs(v) > math.Ldexp(1, 360) {
			return fmt.Sprintf("the value %g is no number from -2^360 to 2^360", v)
		}
	}
	return ""
}
