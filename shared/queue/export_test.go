package queue

// Statements are the statements whose plans the tests look at.
var Statements = map[string]string{
	"claim":         "WITH RECURSIVE " + eligibleBatches + claimReady,
	"claim a batch": "WITH " + oneBatch + claimReady,
	"claim suspect": claimSuspect,
	"rescue":        rescueLost,
	"release":       releaseTasks,
	"clear":         clearRows,
	"fail":          failRows,
}
