package ledger

// OldestPendingAge is the query for the test of its plan.
const OldestPendingAge = oldestPendingAge
