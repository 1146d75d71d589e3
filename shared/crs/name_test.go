package crs_test

import (
	"errors"
	"strings"
	"testing"

	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
)

// reasonOf returns the reason of a Fault, or the error's text when it is none.
func reasonOf(err error) deadletter.Reason {
	if err == nil {
		return ""
	}
	var f *deadletter.Fault
	if errors.As(err, &f) {
		return f.Reason
	}
	return deadletter.Reason("not a fault: " + err.Error())
}

const (
	utm10WKT1 = `PROJCS["NAD83 / UTM zone 10N",GEOGCS["NAD83",DATUM["North_American_Datum_1983",SPHEROID["GRS 1980",6378137,298.257222101,AUTHORITY["EPSG","7019"]],AUTHORITY["EPSG","6269"]],PRIMEM["Greenwich",0,AUTHORITY["EPSG","8901"]],UNIT["degree",0.0174532925199433,AUTHORITY["EPSG","9122"]],AUTHORITY["EPSG","4269"]],PROJECTION["Transverse_Mercator"],PARAMETER["latitude_of_origin",0],PARAMETER["central_meridian",-123],PARAMETER["scale_factor",0.9996],PARAMETER["false_easting",500000],PARAMETER["false_northing",0],UNIT["metre",1,AUTHORITY["EPSG","9001"]],AXIS["Easting",EAST],AXIS["Northing",NORTH],AUTHORITY["EPSG","26910"]]`

	utm10WKT2 = `PROJCRS["NAD83 / UTM zone 10N",BASEGEOGCRS["NAD83",DATUM["North American Datum 1983",ELLIPSOID["GRS 1980",6378137,298.257222101,LENGTHUNIT["metre",1]]],PRIMEM["Greenwich",0],ID["EPSG",4269]],CONVERSION["UTM zone 10N",METHOD["Transverse Mercator",ID["EPSG",9807]],PARAMETER["Longitude of natural origin",-123,ANGLEUNIT["degree",0.0174532925199433],ID["EPSG",8802]]],CS[Cartesian,2],AXIS["(E)",east,ORDER[1]],AXIS["(N)",north,ORDER[2]],USAGE[SCOPE["""quoted"", with ] and ("],AREA["x"],BBOX[30.54,-126,81.8,-119.99]],ID["EPSG",26910]]`

	// What Esri writes: no identifier anywhere at the root.
	utm10Esri = `PROJCS["NAD_1983_UTM_Zone_10N",GEOGCS["GCS_North_American_1983",DATUM["D_North_American_1983",SPHEROID["GRS_1980",6378137.0,298.257222101]],PRIMEM["Greenwich",0.0],UNIT["Degree",0.0174532925199433],AUTHORITY["EPSG","4269"]],PROJECTION["Transverse_Mercator"],UNIT["Meter",1.0]]`

	compoundWKT = `COMPD_CS["OSGB36 / British National Grid + ODN height",PROJCS["OSGB36 / British National Grid",GEOGCS["OSGB36",AUTHORITY["EPSG","4277"]],AUTHORITY["EPSG","27700"]],VERT_CS["ODN height",AUTHORITY["EPSG","5701"]]]`

	utm10PROJJSON = `{"$schema":"https://proj.org/schemas/v0.5/projjson.schema.json","type":"ProjectedCRS","name":"NAD83 / UTM zone 10N","base_crs":{"name":"NAD83","id":{"authority":"EPSG","code":4269}},"id":{"authority":"EPSG","code":26910}}`

	compoundPROJJSON = `{"type":"CompoundCRS","name":"a + b","components":[{"type":"GeographicCRS","id":{"authority":"EPSG","code":"4326"}},{"type":"VerticalCRS","id":{"authority":"EPSG","code":5773}}]}`
)

func TestResolve(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		situation string
		name      string
		code      int
		reason    deadletter.Reason
	}{
		{"authority and code", "EPSG:26910", 26910, ""},
		{"lower case", "epsg:26910", 26910, ""},
		{"space around", "  EPSG:26910\n", 26910, ""},
		{"space after the colon", "EPSG: 26910", 26910, ""},
		{"bare number", "26910", 26910, ""},
		{"number that went through a float", "26910.0", 26910, ""},
		{"two colons", "EPSG::26910", 26910, ""},
		{"version between", "EPSG:9.9.1:26910", 26910, ""},
		{"safe CURIE", "[EPSG:26910]", 26910, ""},
		{"PROJ 4 init string", "+init=epsg:26910", 26910, ""},
		{"init string with its type", "+init=epsg:26910 +type=crs", 26910, ""},
		{"URN", "urn:ogc:def:crs:EPSG::26910", 26910, ""},
		{"URN in upper case", "URN:OGC:DEF:CRS:EPSG::26910", 26910, ""},
		{"URN with version", "urn:ogc:def:crs:EPSG:9.9.1:26910", 26910, ""},
		{"URN without a version's colon", "urn:ogc:def:crs:EPSG:26910", 26910, ""},
		{"x-ogc URN", "urn:x-ogc:def:crs:EPSG:26910", 26910, ""},
		{"x-ogc URN with version", "urn:x-ogc:def:crs:EPSG:6.9:26910", 26910, ""},
		{"compound URN", "urn:ogc:def:crs,crs:EPSG::26910,crs:EPSG::5703", 26910, ""},
		{"compound URN with versions", "urn:ogc:def:crs,crs:EPSG:6.12:3068,crs:EPSG:6.12:5783", 3068, ""},
		{"OGC URI", "http://www.opengis.net/def/crs/EPSG/0/26910", 26910, ""},
		{"OGC URI over TLS, with a slash", "https://www.opengis.net/def/crs/EPSG/0/26910/", 26910, ""},
		{"OGC URI with version", "http://www.opengis.net/def/crs/EPSG/9.9.1/26910", 26910, ""},
		{"OGC URI without www", "http://opengis.net/def/crs/epsg/0/26910", 26910, ""},
		{"compound URI", "http://www.opengis.net/def/crs-compound?1=http://www.opengis.net/def/crs/EPSG/0/26910&2=http://www.opengis.net/def/crs/EPSG/0/5703", 26910, ""},
		{"GML 2 form", "http://www.opengis.net/gml/srs/epsg.xml#26910", 26910, ""},
		{"epsg.io link", "https://epsg.io/26910", 26910, ""},
		{"epsg.io without a scheme", "epsg.io/26910", 26910, ""},
		{"epsg.io download", "https://epsg.io/26910.wkt", 26910, ""},
		{"spatialreference.org link", "http://spatialreference.org/ref/epsg/26910/", 26910, ""},
		{"spatialreference.org PROJ link", "https://spatialreference.org/ref/epsg/26910/proj4/", 26910, ""},
		{"OGC CRS84", "OGC:CRS84", 4326, ""},
		{"CRS84", "CRS84", 4326, ""},
		{"CRS:84", "CRS:84", 4326, ""},
		{"CRS84 URN", "urn:ogc:def:crs:OGC:1.3:CRS84", 4326, ""},
		{"CRS84 URN without version", "urn:ogc:def:crs:OGC::CRS84", 4326, ""},
		{"CRS84 URI", "http://www.opengis.net/def/crs/OGC/1.3/CRS84", 4326, ""},
		{"CRS84h URI", "http://www.opengis.net/def/crs/OGC/0/CRS84h", 4326, ""},
		{"CRS83 is NAD83", "OGC:CRS83", 4269, ""},
		{"CRS27 is NAD27", "urn:ogc:def:crs:OGC:1.3:CRS27", 4267, ""},
		{"WGS84", "WGS84", 4326, ""},
		{"WGS 84", "WGS 84", 4326, ""},
		{"Esri Web Mercator", "ESRI:102100", 3857, ""},
		{"Esri Web Mercator under EPSG", "EPSG:102100", 3857, ""},
		{"Google's joke", "EPSG:900913", 3857, ""},
		{"deprecated Web Mercator", "EPSG:3785", 3857, ""},
		{"Esri code", "ESRI:102008", 102008, ""},
		{"Esri code as SRID", "102008", 102008, ""},
		{"EPSG code under ESRI, as wkid has it", "ESRI:26910", 26910, ""},
		{"compound with plus", "EPSG:4326+5773", 4326, ""},
		{"compound with plus and authority", "EPSG:26910+EPSG:5703", 26910, ""},
		{"CRS84 and a vertical CRS", "OGC:CRS84+EPSG:5773", 4326, ""},
		{"three-dimensional code", "EPSG:4979", 4326, ""},
		{"three-dimensional ETRS89", "EPSG:4937", 4258, ""},
		{"compound code", "EPSG:7405", 27700, ""},
		{"a code nobody lists may be the database's own", "990001", 990001, ""},
		{"a code of an EPSG release to come", "EPSG:99999", 99999, ""},
		{"WKT 1", utm10WKT1, 26910, ""},
		{"WKT 2", utm10WKT2, 26910, ""},
		{"WKT with round brackets", strings.NewReplacer("[", "(", "]", ")").Replace(utm10WKT1), 26910, ""},
		{"WKT 1 of a compound CRS", compoundWKT, 27700, ""},
		{"PROJJSON", utm10PROJJSON, 26910, ""},
		{"PROJJSON of a compound CRS", compoundPROJJSON, 4326, ""},
		{"ESRI spatialReference", `{"wkid":102100,"latestWkid":3857}`, 3857, ""},
		{"GeoJSON 2008 object", `{"type":"name","properties":{"name":"urn:ogc:def:crs:EPSG::26910"}}`, 26910, ""},
		{"JSON string", `"EPSG:26910"`, 26910, ""},

		{"empty", "", 0, deadletter.ReasonMissingCRS},
		{"blank", " \t", 0, deadletter.ReasonMissingCRS},
		{"zero", "0", 0, deadletter.ReasonMissingCRS},
		{"zero as a float", "0.0", 0, deadletter.ReasonMissingCRS},
		{"minus one", "-1", 0, deadletter.ReasonMissingCRS},
		{"zero of EPSG", "EPSG:0", 0, deadletter.ReasonMissingCRS},
		{"empty JSON string", `""`, 0, deadletter.ReasonMissingCRS},

		{"no name at all", "NAD83 / UTM zone 10N", 0, deadletter.ReasonUnknownCRS},
		{"number beyond every SRID", "EPSG:9999999", 0, deadletter.ReasonUnknownCRS},
		{"negative number", "EPSG:-2", 0, deadletter.ReasonUnknownCRS},
		{"fraction", "26910.5", 0, deadletter.ReasonUnknownCRS},
		{"exponent", "1e5", 0, deadletter.ReasonUnknownCRS},
		{"NaN", "NaN", 0, deadletter.ReasonUnknownCRS},
		{"number beyond int", "EPSG:99999999999999999999", 0, deadletter.ReasonUnknownCRS},
		{"another authority", "IGNF:LAMB93", 0, deadletter.ReasonUnknownCRS},
		{"EPSG without such a code", "EPSG:102008", 0, deadletter.ReasonUnknownCRS},
		{"EPSG 102113 is nobody's", "EPSG:102113", 0, deadletter.ReasonUnknownCRS},
		{"PROJ string", "+proj=utm +zone=10 +datum=NAD83", 0, deadletter.ReasonUnknownCRS},
		{"init string that goes on", "+init=epsg:26910 +towgs84=1,2,3", 0, deadletter.ReasonUnknownCRS},
		{"URN of something else", "urn:ogc:def:uom:EPSG::9001", 0, deadletter.ReasonUnknownCRS},
		{"URN of a combined CRS with nothing in it", "urn:ogc:def:crs,", 0, deadletter.ReasonUnknownCRS},
		{"plus without a vertical CRS", "EPSG:4326+", 0, deadletter.ReasonUnknownCRS},
		{"link to somewhere else", "https://example.com/26910", 0, deadletter.ReasonUnknownCRS},
		{"Esri's WKT", utm10Esri, 0, deadletter.ReasonUnknownCRS},
		{"WKT that stops", utm10WKT1[:300], 0, deadletter.ReasonUnknownCRS},
		{"WKT of a CRS with its own datum shift", `BOUNDCRS[SOURCECRS[` + utm10WKT1 + `],ID["EPSG",26910]]`, 0, deadletter.ReasonUnknownCRS},
		{"PROJJSON without an identifier", `{"type":"ProjectedCRS","base_crs":{"id":{"authority":"EPSG","code":4269}}}`, 0, deadletter.ReasonUnknownCRS},
		{"JSON that is no CRS", `{"a":1}`, 0, deadletter.ReasonUnknownCRS},
		{"JSON that stops", `{"a":`, 0, deadletter.ReasonUnknownCRS},
	} {
		t.Run(tt.situation, func(t *testing.T) {
			t.Parallel()
			code, err := crs.Resolve(tt.name)
			if code != tt.code || reasonOf(err) != tt.reason {
				t.Errorf("Resolve(%q) = %d, %v; want %d, reason %q", tt.name, code, err, tt.code, tt.reason)
			}
		})
	}
}

func TestResolveMessageHoldsTheName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"EPSG:9999999", "my grid", "0", `BOUNDCRS[1]`} {
		_, err := crs.Resolve(name)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Resolve(%q): error %v does not hold the name", name, err)
		}
	}
	_, err := crs.Resolve("EPSG:102008")
	if err == nil || !strings.Contains(err.Error(), "ESRI:102008") {
		t.Errorf("Resolve(EPSG:102008): error %v does not point at ESRI:102008", err)
	}
}

func TestResolveMember(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		situation string
		member    string
		name      string
		code      int
		reason    deadletter.Reason
	}{
		{"named", `{"type":"name","properties":{"name":"urn:ogc:def:crs:OGC:1.3:CRS84"}}`, "urn:ogc:def:crs:OGC:1.3:CRS84", 4326, ""},
		{"named, with space and an escape", ` { "type" : "name", "properties" : { "name" : "EPSG\u003a26910" } } `, "EPSG:26910", 26910, ""},
		{"linked", `{"type":"link","properties":{"href":"http://spatialreference.org/ref/epsg/26910/proj4/","type":"proj4"}}`, "http://spatialreference.org/ref/epsg/26910/proj4/", 26910, ""},
		{"the draft's EPSG type", `{"type":"EPSG","properties":{"code":26910}}`, "26910", 26910, ""},
		{"plain string", `"epsg:26910"`, "epsg:26910", 26910, ""},
		{"plain number", `26910`, "26910", 26910, ""},
		{"PROJJSON", utm10PROJJSON, "EPSG:26910", 26910, ""},
		{"ESRI", `{"wkid":4326}`, "4326", 4326, ""},
		{"null", `null`, "", 0, deadletter.ReasonMissingCRS},
		{"nothing", ``, "", 0, deadletter.ReasonMissingCRS},
		{"null name", `{"type":"name","properties":{"name":null}}`, "", 0, deadletter.ReasonMissingCRS},
		{"zero", `0`, "0", 0, deadletter.ReasonMissingCRS},
		{"unknown name is kept", `{"type":"name","properties":{"name":"my grid"}}`, "my grid", 0, deadletter.ReasonUnknownCRS},
		{"no properties", `{"type":"name"}`, `{"type":"name"}`, 0, deadletter.ReasonUnknownCRS},
		{"array", `["EPSG:26910"]`, `["EPSG:26910"]`, 0, deadletter.ReasonUnknownCRS},
		{"true", `true`, `true`, 0, deadletter.ReasonUnknownCRS},
	} {
		t.Run(tt.situation, func(t *testing.T) {
			t.Parallel()
			name, code, err := crs.ResolveMember([]byte(tt.member))
			if name != tt.name || code != tt.code || reasonOf(err) != tt.reason {
				t.Errorf("ResolveMember(%s) = %q, %d, %v; want %q, %d, reason %q", tt.member, name, code, err, tt.name, tt.code, tt.reason)
			}
		})
	}
}

func FuzzResolve(f *testing.F) {
	for _, s := range []string{
		"EPSG:26910", "urn:ogc:def:crs,crs:EPSG::26910,crs:EPSG::5703", "http://www.opengis.net/def/crs/EPSG/0/26910",
		"OGC:CRS84", "EPSG:4326+5773", "+init=epsg:4326", utm10WKT1, utm10WKT2, compoundWKT, utm10PROJJSON, compoundPROJJSON,
		`{"wkid":102100,"latestWkid":3857}`, `"\"26910\""`, "0", "", "[EPSG:1]", "http://www.opengis.net/def/crs-compound?1=http://epsg.io/1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		code, err := crs.Resolve(name)
		if err != nil {
			if r := reasonOf(err); code != 0 || r != deadletter.ReasonMissingCRS && r != deadletter.ReasonUnknownCRS {
				t.Fatalf("Resolve(%q) = %d, %v", name, code, err)
			}
		} else if again, err := crs.Resolve(strings.TrimSpace(name)); again != code || err != nil {
			t.Fatalf("Resolve(%q) = %d, and of the trimmed name %d, %v", name, code, again, err)
		} else if code <= 0 || code > 998999 {
			t.Fatalf("Resolve(%q) = %d, which is no SRID", name, code)
		}
		crs.ResolveMember([]byte(name))
	})
}
