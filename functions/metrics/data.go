package main

import (
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"

	"geodlq/shared/deadletter"
	"geodlq/shared/ledger"
	"geodlq/shared/telemetry/gauge"
)

// The metrics, as alarms and the dashboard name them. All have the dimensions
// Service and Stage; some are there once more by Reason.
const (
	// What happened in a window: rows, but for the runs of DownstreamStops.
	metricArrived         = "Arrived"
	metricCleared         = "Cleared"
	metricReplayFailed    = "ReplayFailed" // also by Reason
	metricQuarantined     = "Quarantined"  // also by Reason
	metricDiscarded       = "Discarded"
	metricLostLeases      = "LostLeases"
	metricDownstreamStops = "DownstreamStops"
	metricTimeToClear     = "TimeToClearSeconds" // a distribution: ask for p50 and p95

	// How things stood at its end.
	metricActive           = "Active"
	metricQuarantinedNow   = "QuarantinedNow"
	metricOldestPendingAge = "OldestPendingAgeSeconds"
	metricPoisonRate       = "PoisonRate"
	metricWorstBatchRate   = "WorstBatchPoisonRate"
	metricLedgerMismatch   = "LedgerMismatch" // batches; only by a check
	dimensionService       = "Service"
	dimensionStage         = "Stage"
	dimensionReason        = "Reason"
	service                = "geodlq"
	unknown                = string(deadletter.ReasonUnknown)
)

// gauges makes the metrics of one stage.
type gauges struct{ stage string }

// window returns the metrics of a closed window, stamped with its start. They
// follow from the window alone, so that a repetition publishes the same and no
// Maximum or Average changes. What is not defined or not known is left out: a rate
// while nothing arrived, ages while nothing was cleared.
func (g gauges) window(w ledger.Window) []gauge.Metric {
	count := func(name string, n int64) gauge.Metric {
		return g.metric(name, w.Start, types.StandardUnitCount, float64(n))
	}
	list := []gauge.Metric{
		count(metricArrived, w.Arrived),
		count(metricCleared, w.Cleared),
		count(metricReplayFailed, w.ReplayFailed),
		count(metricQuarantined, w.Quarantined),
		count(metricDiscarded, w.Discarded),
		count(metricLostLeases, w.LostLeases),
		count(metricDownstreamStops, w.DownstreamStops),
		count(metricActive, w.Active),
		count(metricQuarantinedNow, w.QuarantinedNow),
	}
	if w.PoisonRate != nil {
		list = append(list, g.metric(metricPoisonRate, w.Start, types.StandardUnitNone, *w.PoisonRate))
		worst := 0.0 // nothing is in quarantine
		if w.WorstPoisonRate != nil {
			worst = *w.WorstPoisonRate
		}
		list = append(list, g.metric(metricWorstBatchRate, w.Start, types.StandardUnitNone, worst))
	}
	if w.OldestPendingAge != nil {
		list = append(list, g.metric(metricOldestPendingAge, w.Start, types.StandardUnitSeconds, *w.OldestPendingAge))
	}
	if len(w.ClearedByAge) > 0 {
		ages := g.metric(metricTimeToClear, w.Start, types.StandardUnitSeconds, 0)
		for _, class := range sorted(w.ClearedByAge) {
			ages.Values = append(ages.Values, ledger.AgeOf(class))
			ages.Counts = append(ages.Counts, float64(w.ClearedByAge[class]))
		}
		list = append(list, ages)
	}
	list = append(list, g.byReason(metricReplayFailed, w.Start, w.ReplayFailedByReason)...)
	return append(list, g.byReason(metricQuarantined, w.Start, w.QuarantinedByReason)...)
}

// byReason repeats a count by its reasons, which are of the closed list: each is a
// metric of its own, and what a pipeline or a person wrote must not make more.
func (g gauges) byReason(name string, at time.Time, rows map[string]int64) []gauge.Metric {
	closed := map[string]int64{}
	for reason, n := range rows {
		if !deadletter.Reason(reason).Known() {
			reason = unknown
		}
		closed[reason] += n
	}
	var list []gauge.Metric
	for _, reason := range sorted(closed) {
		m := g.metric(name, at, types.StandardUnitCount, float64(closed[reason]))
		m.Dimensions = append(m.Dimensions, gauge.Dimension{Name: dimensionReason, Value: reason})
		list = append(list, m)
	}
	return list
}

func (g gauges) metric(name string, at time.Time, unit types.StandardUnit, value float64) gauge.Metric {
	return gauge.Metric{
		Name:       name,
		Dimensions: []gauge.Dimension{{Name: dimensionService, Value: service}, {Name: dimensionStage, Value: g.stage}},
		At:         at,
		Unit:       unit,
		Value:      value,
	}
}

func sorted[K int | string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
