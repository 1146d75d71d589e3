package replay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"geodlq/shared/deadletter"
	"geodlq/shared/queue"
	"geodlq/shared/transform"
)

const (
	// claimBytes bounds the payloads that one worker holds. A feature larger than
	// that is claimed alone.
	claimBytes = 16 << 20

	// freshShare of the time left goes to rows without a record before suspects get
	// their turn, so that a steady stream of new rows does not starve these.
	freshShare = 0.75

	// settleTries is how often a settlement is tried while the database is in
	// trouble; the wait doubles from settleWait.
	settleTries = 5
	settleWait  = 100 * time.Millisecond
)

// run is one invocation's work.
type run struct {
	e           *Engine
	event       Event
	transformer transform.Transformer
	contract    queue.Contract
	policy      queue.Policy
	hard        time.Time // when no new work may begin; zero without a deadline

	mu      sync.Mutex
	answer  Answer
	stopped bool
	left    int64         // of the event's limit
	cost    time.Duration // what a batch took lately, on the slow side
}

func newRun(ctx context.Context, e *Engine, event Event, t transform.Transformer) *run {
	s := e.Settings
	r := &run{
		e: e, event: event, transformer: t,
		contract: queue.Contract{Target: t.Target(), Version: t.Version()},
		policy:   s.Policy,
		answer:   Answer{QuarantinedByReason: map[deadletter.Reason]int64{}, ContractVersion: t.Version()},
		left:     event.Limit,
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.hard = deadline.Add(-s.Margin)
	}
	return r
}

// drain works until nothing is due or the run must stop: first what has no record,
// many rows at a time, then the suspects, one at a time with nothing else in hand.
func (r *run) drain(ctx context.Context) {
	if err := r.e.Queue.CheckTarget(ctx, r.contract.Target.EPSG); err != nil {
		r.stopOn(err)
		return
	}
	for {
		worked := r.rescue(ctx)
		worked += r.fresh(ctx)
		worked += r.suspects(ctx)
		if r.over() {
			return
		}
		if worked == 0 {
			r.stop(StopDrained, nil)
			return
		}
	}
}

// rescue ends the leases of vanished workers.
func (r *run) rescue(ctx context.Context) (found int64) {
	for !r.over() {
		lost, quarantined, err := r.e.Queue.Rescue(ctx, r.policy)
		if err != nil {
			r.stopOn(err)
			break
		}
		found += lost
		r.mu.Lock()
		r.answer.LostLeases += lost
		r.answer.Quarantined += quarantined
		if quarantined > 0 {
			r.answer.QuarantinedByReason[deadletter.ReasonWorkerLost] += quarantined
		}
		r.mu.Unlock()
		if lost == 0 {
			break
		}
	}
	return found
}

// fresh lets the workers loose on the rows that never cost a worker its life.
func (r *run) fresh(ctx context.Context) int64 {
	var until time.Time
	if !r.hard.IsZero() {
		now := time.Now()
		until = now.Add(time.Duration(freshShare * float64(r.hard.Sub(now))))
	}
	var wg sync.WaitGroup
	var claimed atomic.Int64
	for range r.e.Settings.Workers {
		wg.Go(func() { claimed.Add(r.worker(ctx, until)) })
	}
	wg.Wait()
	return claimed.Load()
}

// worker claims and transforms one batch while the one before it is being settled,
// so that neither processor nor database waits for the other.
func (r *run) worker(ctx context.Context, until time.Time) (claimed int64) {
	transformed := make(chan work)
	var settling sync.WaitGroup
	settling.Go(func() {
		for w := range transformed {
			r.finish(ctx, w)
		}
	})
	defer settling.Wait()
	defer close(transformed)
	after := ""
	for {
		size, ok := r.mayClaim(ctx, r.e.Settings.ClaimSize, until)
		if !ok {
			return claimed
		}
		began := time.Now()
		lease, err := r.e.Queue.Claim(ctx, queue.Claim{
			Limit: size, Bytes: claimBytes, Lease: r.e.Settings.Lease, Batch: r.event.BatchID, After: after,
		})
		r.unclaimed(size - len(lease.Tasks))
		if err != nil {
			r.stopOn(err)
			return claimed
		}
		if len(lease.Tasks) == 0 {
			return claimed
		}
		after = lease.Tasks[len(lease.Tasks)-1].BatchID
		claimed += int64(len(lease.Tasks))
		transformed <- r.begin(ctx, lease, began)
	}
}

// suspects works, one at a time and with no worker beside it, on the rows that a
// worker vanished with. If one kills this process too, it dies alone.
func (r *run) suspects(ctx context.Context) (n int64) {
	for {
		size, ok := r.mayClaim(ctx, 1, time.Time{})
		if !ok {
			return n
		}
		began := time.Now()
		lease, err := r.e.Queue.ClaimSuspect(ctx, queue.Claim{Lease: r.e.Settings.Lease, Batch: r.event.BatchID})
		r.unclaimed(size - len(lease.Tasks))
		if err != nil {
			r.stopOn(err)
			return n
		}
		if len(lease.Tasks) == 0 {
			return n
		}
		n++
		r.finish(ctx, r.begin(ctx, lease, began))
	}
}

// mayClaim decides whether to begin another claim of up to size rows, and how many
// the event's limit leaves for it. soft, if set, ends the phase but not the run.
func (r *run) mayClaim(ctx context.Context, size int, soft time.Time) (int, bool) {
	if r.over() {
		return 0, false
	}
	if r.e.Stop.Err() != nil || ctx.Err() != nil {
		r.stop(StopTerminated, nil)
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !r.hard.IsZero() && now.Add(r.cost).After(r.hard) {
		r.stopLocked(StopDeadline, nil)
		return 0, false
	}
	if !soft.IsZero() && now.After(soft) {
		return 0, false
	}
	if r.event.Limit > 0 {
		if r.left == 0 {
			r.stopLocked(StopLimit, nil)
			return 0, false
		}
		size = int(min(int64(size), r.left))
		r.left -= int64(size)
	}
	return size, true
}

// unclaimed gives back to the limit what a claim did not find.
func (r *run) unclaimed(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left += int64(n)
}

func (r *run) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopped
}

func (r *run) stop(because StopReason, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopLocked(because, err)
}

// stopLocked keeps the first reason: what follows is often its consequence.
func (r *run) stopLocked(because StopReason, err error) {
	if r.stopped {
		return
	}
	r.stopped = true
	r.answer.StoppedBecause = because
	if err != nil {
		r.answer.Trouble = deadletter.Message(err.Error())
	}
}

// stopOn ends the run because of an error of the queue, which is no row's fault.
func (r *run) stopOn(err error) {
	var schema *queue.SchemaFault
	switch {
	case errors.As(err, &schema):
		r.stop(StopSchema, err)
	case r.e.Stop.Err() != nil:
		r.stop(StopTerminated, err)
	case !r.hard.IsZero() && time.Now().After(r.hard):
		r.stop(StopDeadline, err)
	default:
		r.stop(StopDownstream, err)
	}
}

// work is a claim whose rows have been transformed.
type work struct {
	lease     queue.Lease
	began     time.Time
	cleared   []queue.Cleared
	failed    []queue.Failed
	unstarted []int64 // rows that were left because the run must stop
}

// begin transforms what a claim holds.
func (r *run) begin(ctx context.Context, lease queue.Lease, began time.Time) work {
	r.mu.Lock()
	r.answer.Claimed += int64(len(lease.Tasks))
	r.mu.Unlock()
	w := work{lease: lease, began: began}
	w.cleared, w.failed, w.unstarted = r.transform(ctx, lease.Tasks)
	return w
}

// finish settles it. Whatever happens, each row ends settled, released, or, if the
// database cannot be reached, with its lease.
func (r *run) finish(ctx context.Context, w work) {
	// The settling must not die with the invocation's context: the features are
	// ready and the deadline margin is there for this.
	settled, unsettled := r.settle(ctx, w.lease, w.cleared, w.failed)
	r.tally(settled)
	// Before anybody is told: that may take its time, and these rows are waited for.
	r.release(ctx, w.lease, append(w.unstarted, unsettled...))
	if r.e.Settled != nil && len(settled) > 0 {
		r.told(ctx, w.lease, settled)
	}

	took := time.Since(w.began)
	r.mu.Lock()
	defer r.mu.Unlock()
	// Half of what it was, or what it is now: one slow batch is remembered for a few.
	r.cost = max(took, (r.cost+took)/2)
}

// told hands the outcomes on, in a context that the end of the invocation's does not end.
func (r *run) told(ctx context.Context, lease queue.Lease, settled []queue.Settled) {
	ctx, cancel := r.settleContext(ctx)
	defer cancel()
	r.e.Settled(ctx, lease, settled, r.contract.Version)
}

// transform runs the transform of each task. unstarted are the rows that the run had
// to leave because it must stop.
func (r *run) transform(ctx context.Context, tasks []queue.Task) (cleared []queue.Cleared, failed []queue.Failed, unstarted []int64) {
	cleared = make([]queue.Cleared, 0, len(tasks))
	lane := newLane(ctx, r.transformer, tasks)
	defer func() { lane.abandon() }()
	limit := time.NewTimer(r.e.Settings.RowTimeout)
	defer limit.Stop()
	for i := 0; i < len(tasks); i++ {
		if r.mustLeave(ctx) {
			for _, t := range tasks[i:] {
				unstarted = append(unstarted, t.ID)
			}
			return cleared, failed, unstarted
		}
		limit.Reset(r.e.Settings.RowTimeout)
		var res laneResult
		select {
		case res = <-lane.results:
		case <-limit.C:
			// The transform hangs. It cannot be stopped from outside; its goroutine
			// is left to itself, and the rows after it get a new one.
			lane.abandon()
			lane = newLane(ctx, r.transformer, tasks[i+1:])
			res.err = deadletter.Faultf(deadletter.ReasonUnknown, "", "the transform took longer than %s (ROW_TIMEOUT)", r.e.Settings.RowTimeout)
		}
		if res.err == nil {
			cleared = append(cleared, queue.Cleared{ID: tasks[i].ID, Output: res.out})
			continue
		}
		class, reason := transform.Classify(res.err)
		if class == transform.ClassDownstream {
			r.stopOn(res.err)
			for _, t := range tasks[i:] {
				unstarted = append(unstarted, t.ID)
			}
			return cleared, failed, unstarted
		}
		fault, ok := deadletter.AsFault(res.err)
		if !ok {
			fault = &deadletter.Fault{Reason: reason, Detail: res.err.Error(), Err: res.err}
		}
		var panicked *transform.PanicError
		if errors.As(res.err, &panicked) {
			r.e.Log.ErrorContext(ctx, "the transform panicked", "task", tasks[i].ID, "batch_id", tasks[i].BatchID, "stack", string(panicked.Stack))
		}
		failed = append(failed, queue.Failed{ID: tasks[i].ID, Class: class, Fault: fault})
	}
	return cleared, failed, nil
}

// mustLeave reports whether the rows not yet started are to be given back.
func (r *run) mustLeave(ctx context.Context) bool {
	switch {
	case r.e.Stop.Err() != nil, ctx.Err() != nil:
		r.stop(StopTerminated, nil)
	case !r.hard.IsZero() && time.Now().After(r.hard):
		r.stop(StopDeadline, nil)
	default:
		return false
	}
	return true
}

// lane is a goroutine that transforms tasks in order.
type lane struct {
	results chan laneResult
	abandon context.CancelFunc
}

type laneResult struct {
	out transform.Output
	err error
}

func newLane(ctx context.Context, t transform.Transformer, tasks []queue.Task) *lane {
	ctx, cancel := context.WithCancel(ctx)
	l := &lane{results: make(chan laneResult, 16), abandon: cancel}
	go func() {
		for i := range tasks {
			var res laneResult
			in, err := tasks[i].Input()
			if err != nil {
				res.err = err
			} else {
				res.out, res.err = transform.Run(ctx, t, in)
			}
			select {
			case l.results <- res:
			case <-ctx.Done():
				return
			}
		}
	}()
	return l
}

// settle commits the outcomes, trying again while the database is in trouble and
// there is time. It returns the rows that could not be settled.
func (r *run) settle(ctx context.Context, lease queue.Lease, cleared []queue.Cleared, failed []queue.Failed) (settled []queue.Settled, unsettled []int64) {
	if len(cleared)+len(failed) == 0 {
		return nil, nil
	}
	ctx, cancel := r.settleContext(ctx)
	defer cancel()
	for try, wait := 1, settleWait; ; try, wait = try+1, 2*wait {
		done, err := r.e.Queue.Settle(ctx, lease.Token, r.contract, r.policy, cleared, failed)
		settled = append(settled, done...)
		if err == nil {
			return settled, nil
		}
		cleared, failed = remaining(cleared, failed, done)
		var schema *queue.SchemaFault
		class, _ := transform.Classify(err)
		if errors.As(err, &schema) || class != transform.ClassDownstream || try == settleTries || !sleep(ctx, wait) {
			r.e.Log.ErrorContext(ctx, "a claim could not be settled", "lease", lease.Token.String(), "rows", len(cleared)+len(failed), "tries", try, "error", err)
			r.stopOn(err)
			for _, c := range cleared {
				unsettled = append(unsettled, c.ID)
			}
			for _, f := range failed {
				unsettled = append(unsettled, f.ID)
			}
			return settled, unsettled
		}
		r.e.Log.WarnContext(ctx, "settling again", "lease", lease.Token.String(), "try", try, "error", err)
	}
}

// settleContext outlives the invocation's context, up to the deadline itself.
func (r *run) settleContext(ctx context.Context) (context.Context, context.CancelFunc) {
	free := context.WithoutCancel(ctx)
	if r.hard.IsZero() {
		return context.WithTimeout(free, time.Minute)
	}
	return context.WithDeadline(free, r.hard.Add(r.e.Settings.Margin/2))
}

// remaining drops what has been settled already.
func remaining(cleared []queue.Cleared, failed []queue.Failed, done []queue.Settled) ([]queue.Cleared, []queue.Failed) {
	gone := make(map[int64]bool, len(done))
	for _, d := range done {
		gone[d.ID] = true
	}
	var c []queue.Cleared
	for _, x := range cleared {
		if !gone[x.ID] {
			c = append(c, x)
		}
	}
	var f []queue.Failed
	for _, x := range failed {
		if !gone[x.ID] {
			f = append(f, x)
		}
	}
	return c, f
}

// sleep waits for d and reports whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *run) tally(settled []queue.Settled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &r.answer
	for _, s := range settled {
		switch s.Result {
		case queue.Inserted:
			a.Replayed, a.Inserted = a.Replayed+1, a.Inserted+1
		case queue.Unchanged:
			a.Replayed, a.Unchanged = a.Replayed+1, a.Unchanged+1
		case queue.Updated:
			a.Replayed, a.Updated = a.Replayed+1, a.Updated+1
		case queue.Retried:
			a.Retried++
		case queue.Quarantined:
			a.Quarantined++
			a.QuarantinedByReason[s.Reason]++
		case queue.Stale:
			a.Stale++
		}
	}
}

// release gives rows back uncharged. If even that fails, their leases run out and
// they are tried again alone; the attempt is given back when they clear.
func (r *run) release(ctx context.Context, lease queue.Lease, ids []int64) {
	if len(ids) == 0 {
		return
	}
	ctx, cancel := r.e.lastWords(ctx)
	defer cancel()
	n, err := r.e.Queue.Release(ctx, lease.Token, ids)
	if err != nil {
		r.e.Log.LogAttrs(ctx, slog.LevelError, "claimed rows could not be released; their lease will run out",
			slog.String("lease", lease.Token.String()), slog.Int("rows", len(ids)), slog.Any("error", err))
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer.Released += n
	r.answer.Stale += int64(len(ids)) - n
}
