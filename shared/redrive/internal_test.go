package redrive

// What the tests of globs look at.
var (
	Like        = like
	GlobMatches = globMatches
)
