// Package crs turns the names people give coordinate reference systems (CRS) into
// codes, and positions in one CRS into positions in another: rightly or not at all.
//
// [Resolve] and [ResolveMember] read names. [New] makes a [Transformer] for a pair
// of codes, whose [Engine] says who does the work: nobody (source and target are
// the same), this package, or ST_Transform in the database, for which the
// Transformer makes the checks that can be made before. Whatever the engine, a
// position leaves with the right place on Earth or the feature is refused with a
// [deadletter.Fault] that names the vertex.
//
// Positions are x, y: easting and northing, longitude and latitude, whatever axis
// order an authority gives its CRS.
//
// # What is computed here
//
// The CRSs of EPSG on a datum that is WGS 84 for purposes of two dimensions (EPSG
// publishes a null transformation: NAD83 and its realisations, ETRS89, GDA94 and
// GDA2020, SIRGAS 2000, JGD2011 and so on), in a projection this package has, for
// which ST_Transform and the projection agree within a tenth of a millimetre both
// ways, over the area of use and three degrees beyond. That is checked when the
// tables are generated and again by the package's tests. Where PROJ applies a shift
// somewhere in that area (NAD83 in Hawaii and the Aleutians), the CRS is left to
// PostGIS. [Computed] lists them.
//
// The datum and projection types are those of [github.com/wroge/wgs84]; its own
// transverse Mercator, several metres off, is not used, nor its trip through
// geocentric coordinates, which a datum equal to WGS 84 does not need. [Reference]
// gives a CRS in that library's terms.
//
// # What is refused
//
// A CRS for which PROJ without datum grids has only a ballpark answer in most of
// the area of use (no datum shift at all), or one of more than five metres where a
// grid would give five or better. NAD27 is the classic. PROJ says nothing when it
// falls back like that. Where it has an operation for a part of the area of use,
// positions are accepted in that part. [AllowBallpark] lifts both, for databases
// that have the grids.
package crs
