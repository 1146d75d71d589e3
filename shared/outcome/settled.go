package outcome

import (
	"cmp"
	"time"

	"geodlq/shared/deadletter"
	"geodlq/shared/queue"
)

// OfClaim returns the outcomes of a claim's settled rows, at the given time. Rows
// that another worker took over meanwhile have none here.
func OfClaim(lease queue.Lease, settled []queue.Settled, contractVersion string, at time.Time) []Outcome {
	tasks := make(map[int64]*queue.Task, len(lease.Tasks))
	for i := range lease.Tasks {
		tasks[lease.Tasks[i].ID] = &lease.Tasks[i]
	}
	outcomes := make([]Outcome, 0, len(settled))
	for _, s := range settled {
		status := Status(s.Result)
		t := tasks[s.ID]
		if status == "" || t == nil {
			continue
		}
		outcomes = append(outcomes, Outcome{
			DLQID: t.DLQID, BatchID: t.BatchID, FeatureID: cmp.Or(t.FeatureID, t.TaskID),
			At: at, Event: string(s.Result), Status: status, Attempts: t.Attempts,
			FailedRule: s.Rule, ErrorType: string(s.Reason), Error: s.Error, ContractVersion: contractVersion,
		})
	}
	return outcomes
}

// Status is the status of a row that was settled so; "" for [queue.Stale].
func Status(r queue.Result) string {
	switch r {
	case queue.Inserted, queue.Unchanged, queue.Updated:
		return "replayed"
	case queue.Retried:
		return "pending"
	case queue.Quarantined:
		return "quarantined"
	}
	return ""
}

// SourceOf names a claim as the source of its outcomes.
func SourceOf(token deadletter.UUID) string { return "lease " + token.String() }
