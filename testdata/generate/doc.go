// Generate writes the files in testdata that are made, not collected: the failure
// file of a county parcel load, the summary of what must become of it, and two
// small inputs of other kinds.
//
//	go generate ./testdata/generate
//
// The output depends on nothing but this code: there is no clock, no map order
// and no floating-point arithmetic in it, so every machine writes the same bytes.
//
// The place is Santa Clara County, California. The positions of the tracts are
// real, one anchor for each coordinate reference system (CRS); streets, lots,
// people and numbers are invented.
package main

//go:generate go run geodlq/testdata/generate -dir ..
