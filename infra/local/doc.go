// Package local runs everything GeoDLQ needs on one machine, with no container
// engine: PostgreSQL with PostGIS, an S3 server, a recorder that stands in for
// CloudWatch, and a Lambda runtime API that the built bootstraps talk to as they
// do in the cloud. The make targets and the tests use it alike.
//
// Nothing it starts outlives its owner. What cannot be tied to the owner's own
// process (PostgreSQL, directories) is kept by a small shell in a session of its
// own whose standard input is a pipe that the owner holds: when the owner ends,
// however it ends, the pipe closes and the shell stops the server and removes the
// files.
//
// The package is never part of a deployed function.
package local
