package main

// A tract is laid out in a local frame: whole centimetres, x along its streets, y
// across. Its frame is turned by an angle with a rational sine and cosine and set
// down at the tract's anchor in whatever CRS a layer is delivered in.

// point is a position in a tract's frame, in centimetres.
type point struct{ x, y int64 }

func (p point) plus(dx, dy int64) point { return point{p.x + dx, p.y + dy} }

// system is a CRS a layer is delivered in.
type system int

const (
	utm      system = iota // EPSG:26910, NAD83 / UTM zone 10N, metres
	gps                    // EPSG:32610, WGS 84 / UTM zone 10N, metres
	plane                  // EPSG:2227, NAD83 / California zone 3, US survey feet
	lonlat                 // EPSG:4326, degrees
	mercator               // EPSG:3857, metres
)

// grid is how a system writes its coordinates: one centimetre on the ground in
// units of the last decimal place, as a fraction for each axis. The fraction for
// degrees and for Web Mercator holds at latitude 37.25, the middle of the county;
// at its ends a lot comes out 0.3 % too large or too small.
type grid struct {
	epsg   int
	places int
	x, y   [2]int64
}

var grids = [...]grid{
	utm:      {26910, 2, [2]int64{1, 1}, [2]int64{1, 1}},
	gps:      {32610, 3, [2]int64{10, 1}, [2]int64{10, 1}},
	plane:    {2227, 3, [2]int64{3937, 120}, [2]int64{3937, 120}},
	lonlat:   {4326, 8, [2]int64{1128, 100}, [2]int64{901, 100}},
	mercator: {3857, 2, [2]int64{12563, 10000}, [2]int64{12563, 10000}},
}

// tract is one neighbourhood. Anchors are its south-west corner in units of the
// last decimal place of each system, computed with PROJ 9.1.1 from the degrees:
//
//	SELECT ST_Transform(ST_SetSRID(ST_MakePoint(-121.8990, 37.3060), 4326), 26910)
type tract struct {
	name    string
	city    string
	zip     string
	book    int      // of the assessor's map
	turn    [3]int64 // a, b, c with a²+b²=c²: cosine a/c, sine b/c
	anchors [5]point // by system
}

var tracts = []tract{
	{"Willow Glen", "San José", "95125", 429, [3]int64{12, 5, 13}, [5]point{
		{59757030, 412938703}, {597570300, 4129387030}, {6154788060, 1936930540}, {-12189900000, 3730600000}, {-1356973461, 448184550}}},
	{"Alum Rock", "San José", "95127", 601, [3]int64{4, 3, 5}, [5]point{
		{60386779, 413617600}, {603867790, 4136176000}, {6176039100, 1958651610}, {-12182700000, 3736650000}, {-1356171960, 449031603}}},
	{"Almaden Valley", "San José", "95120", 577, [3]int64{24, 7, 25}, [5]point{
		{60096409, 411988468}, {600964090, 4119884680}, {6165092490, 1905462290}, {-12186200000, 3722000000}, {-1356561579, 446981648}}},
	{"Evergreen", "San José", "95135", 659, [3]int64{15, 8, 17}, [5]point{
		{60731599, 412972814}, {607315990, 4129728140}, {6186787860, 1937199230}, {-12178900000, 3730800000}, {-1355748946, 448212541}}},
	{"Loma Alta", "Los Gatos", "95030", 529, [3]int64{1, 0, 1}, [5]point{
		{59096592, 412050280}, {590965920, 4120502800}, {6132347170, 1908361940}, {-12197460000, 3722660000}, {-1357815036, 447073915}}},
	{"Cañada del Oro", "Saratoga", "95070", 397, [3]int64{40, 9, 41}, [5]point{
		{58662951, 412458445}, {586629510, 4124584450}, {6118477490, 1922130440}, {-12202300000, 3726380000}, {-1358353823, 447594117}}},
	{"Paradise Valley", "Morgan Hill", "95037", 767, [3]int64{3, 4, 5}, [5]point{
		{61952428, 411019662}, {619524280, 4110196620}, {6225134180, 1872064920}, {-12165440000, 3713050000}, {-1354250586, 445731245}}},
	{"Las Ánimas", "Gilroy", "95020", 808, [3]int64{12, 5, 13}, [5]point{
		{62738105, 409647381}, {627381050, 4096473810}, {6249714770, 1826366120}, {-12156830000, 3700580000}, {-1353292125, 443991526}}},
	{"College Terrace", "Palo Alto", "94306", 137, [3]int64{8, 15, 17}, [5]point{
		{57580969, 414424031}, {575809690, 4144240310}, {6084699660, 1987558030}, {-12214300000, 3744190000}, {-1359689656, 450088225}}},
	{"Monta Loma", "Mountain View", "94043", 147, [3]int64{4, 3, 5}, [5]point{
		{58110675, 413809886}, {581106750, 4138098860}, {6101540070, 1966947590}, {-12208380000, 3738610000}, {-1359030645, 449306166}}},
}

// locate returns p in a system, in units of the last decimal place.
func (t tract) locate(s system, p point) point {
	g, a, b, c := grids[s], t.turn[0], t.turn[1], t.turn[2]
	x, y := divide(p.x*a-p.y*b, c), divide(p.x*b+p.y*a, c)
	return t.anchors[s].plus(divide(x*g.x[0], g.x[1]), divide(y*g.y[0], g.y[1]))
}

// position writes p as a GeoJSON position.
func (t tract) position(s system, p point) array {
	q := t.locate(s, p)
	return array{decimal(q.x, grids[s].places), decimal(q.y, grids[s].places)}
}

// positions writes a row of points.
func (t tract) positions(s system, ps []point) array {
	a := make(array, len(ps))
	for i, p := range ps {
		a[i] = t.position(s, p)
	}
	return a
}

// rings writes a polygon's coordinates, each ring closed.
func (t tract) rings(s system, rings [][]point) array {
	a := make(array, len(rings))
	for i, r := range rings {
		a[i] = t.positions(s, append(append([]point(nil), r...), r[0]))
	}
	return a
}

// divide is division rounded to the nearest whole number, halves away from zero.
func divide(n, d int64) int64 {
	if n < 0 {
		return -((-n + d/2) / d)
	}
	return (n + d/2) / d
}

// A block is ten lots long and two deep; six blocks stand side by side, then a
// street, then the next six.
const (
	lotWidth     = 1800
	lotDepth     = 3200
	lotsInRow    = 10
	lotsInBlock  = 2 * lotsInRow
	blocksInRow  = 6
	streetWidth  = 1500
	blockWidth   = lotsInRow * lotWidth
	blockDepth   = 2 * lotDepth
	blockPitchX  = blockWidth + streetWidth
	blockPitchY  = blockDepth + streetWidth
	blocksInPlan = 5 * blocksInRow
)

// corner is the south-west corner of a block.
func corner(block int) point {
	return point{int64(block%blocksInRow) * blockPitchX, int64(block/blocksInRow) * blockPitchY}
}

// lotCorners is the rectangle a lot is cut from, counter-clockwise from its
// south-west corner.
func lotCorners(block, number int) []point {
	o := corner(block).plus(int64(number%lotsInRow)*lotWidth, int64(number/lotsInRow)*lotDepth)
	return []point{o, o.plus(lotWidth, 0), o.plus(lotWidth, lotDepth), o.plus(0, lotDepth)}
}

// lot is the outline of a lot, counter-clockwise from its south-west corner, not
// closed. Its form depends on its number alone: plain, with a cut corner where two
// streets meet, with a step in its back line, or around the bulb of a cul-de-sac.
func lot(block, number int) []point {
	corners := lotCorners(block, number)
	o := corners[0]
	const w, d = lotWidth, lotDepth
	switch column := number % lotsInRow; {
	case column == 0 && number < lotsInRow:
		return []point{o.plus(300, 0), o.plus(w, 0), o.plus(w, d), o.plus(0, d), o.plus(0, 300)}
	case column == lotsInRow-1 && number >= lotsInRow:
		return []point{o, o.plus(w, 0), o.plus(w, d-300), o.plus(w-300, d), o.plus(0, d)}
	case (block+number)%11 == 4:
		return []point{o, o.plus(w, 0), o.plus(w, d-400), o.plus(w/2, d-400), o.plus(w/2, d-150), o.plus(0, d-150)}
	case (block+number)%17 == 9:
		// The bulb has a radius of 9 m; its offsets are 900 times the cosine and
		// sine of every 15 degrees.
		outline := []point{o}
		for _, q := range []point{{-869, 233}, {-779, 450}, {-636, 636}, {-450, 779}, {-233, 869}, {0, 900}, {233, 869}, {450, 779}, {636, 636}, {779, 450}, {869, 233}} {
			outline = append(outline, o.plus(w/2+q.x, q.y))
		}
		return append(outline, o.plus(w, 0), o.plus(w, d), o.plus(0, d))
	default:
		return corners
	}
}

// square is a square with the given south-west corner and side, clockwise when it
// is to be a hole.
func square(o point, side int64, hole bool) []point {
	if hole {
		return []point{o, o.plus(0, side), o.plus(side, side), o.plus(side, 0)}
	}
	return []point{o, o.plus(side, 0), o.plus(side, side), o.plus(0, side)}
}
