package export_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"geodlq/shared/export"
)

func render(t *testing.T, p *export.Page) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := p.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestPageInABrowser(t *testing.T) {
	t.Parallel()
	p := &export.Page{Title: "County parcels", Filter: `{"batch_id":"county"}`, Made: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	geometries := []string{
		`{"type":"Polygon","coordinates":[[[-122.30,46.80],[-122.20,46.80],[-122.20,46.90],[-122.30,46.90],[-122.30,46.80]]]}`,
		`{"type":"LineString","coordinates":[[-122.10,46.80],[-122.00,46.90]]}`,
		`{"type":"Point","coordinates":[-122.15,46.95]}`,
		`{"type":"MultiPolygon","coordinates":[[[[-122.60,46.80],[-122.50,46.80],[-122.50,46.90],[-122.60,46.80]]]]}`,
		`{"type":"GeometryCollection","geometries":[{"type":"Point","coordinates":[-122.40,46.70]},{"type":"MultiPoint","coordinates":[[-122.40,46.70]]},{"type":"MultiLineString","coordinates":[[[-122.41,46.7],[-122.39,46.7]]]}]}`,
		`{"type":"Point","coordinates":[-122.15,46.95]}`, // on top of the third
	}
	reasons := []string{"coerce_failed", "missing_attribute", "missing_attribute", "bad_geometry", "coerce_failed", "out_of_target_domain"}
	for i, g := range geometries {
		p.Add(&export.Feature{
			ID: int64(i + 1), FeatureID: fmt.Sprintf("p-%d", i+1), BatchID: "county", Status: "quarantined", Reason: reasons[i], FailedRule: "rule:" + reasons[i],
			Error: fmt.Sprintf("message %d", i+1), SourceCRS: "EPSG:26910", Attempts: i, LonLat: json.RawMessage(g),
		})
	}
	p.Add(&export.Feature{ID: 99, FeatureID: "nowhere", BatchID: "county", Status: "quarantined", Reason: "invalid_json"})

	b := open(t, render(t, p))
	b.want("County parcels", `document.title`)
	b.want(true, `document.querySelector("header").textContent.includes("7 dead letters, 6 of them on the map")`)
	b.want("6", `document.body.dataset.drawn`)
	b.want("coerce_failed2 missing_attribute2 bad_geometry1 invalid_json1 out_of_target_domain1", `[...document.querySelectorAll("#causes li")].map((l) => l.textContent).join(" ")`)
	b.want(7.0, `document.querySelectorAll("#features button").length`)

	// Something is drawn: the map is not of one colour.
	b.want(true, `(() => { const c = document.querySelector("canvas"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d.slice(i, i + 4).join()); return seen.size > 20; })()`)

	// A click on a feature shows its reason; one beside it takes that away.
	for i := range 5 {
		if i == 2 {
			continue
		}
		b.clickFeature(i + 1)
		b.want(fmt.Sprint(i+1), `document.body.dataset.selected`)
		b.want(reasons[i], `document.querySelector("#detail h2").textContent`)
		b.want(true, fmt.Sprintf(`document.querySelector("#detail").textContent.includes("message %d") && document.querySelector("#detail").textContent.includes("rule:%s")`, i+1, reasons[i]))
		b.want(fmt.Sprintf("p-%d · %s", i+1, reasons[i]), `document.querySelector("#features [aria-current]").textContent`)
	}
	corner := b.eval(`(() => { const r = document.querySelector("canvas").getBoundingClientRect(); return [r.left + 3, r.bottom - 3]; })()`).([]any)
	b.click(corner[0].(float64), corner[1].(float64))
	b.want("", `document.body.dataset.selected`)

	// Clicking again goes through features on top of each other.
	b.clickFeature(3)
	first := b.eval(`document.body.dataset.selected`)
	b.clickFeature(3)
	second := b.eval(`document.body.dataset.selected`)
	if fmt.Sprint(first, second) != "36" && fmt.Sprint(first, second) != "63" {
		t.Errorf("two clicks on two points in one place select %v and %v", first, second)
	}

	// The list has what the map cannot show, and moves the map to what it can.
	b.clickElement(`#features li:nth-child(7) button`)
	b.want("99", `document.body.dataset.selected`)
	b.want(true, `document.querySelector("#detail").textContent.includes("could not be read")`)
	before := fmt.Sprint(b.eval(`screenOf(4)`))
	b.clickElement(`#features li:nth-child(4) button`)
	b.want("4", `document.body.dataset.selected`)
	b.until(`JSON.stringify(screenOf(4)) !== "` + before + `"`)
	b.clickFeature(4)
	b.want("4", `document.body.dataset.selected`)

	// A reason can be taken off the map.
	b.clickElement(`#all`)
	b.clickElement(`#causes input`)
	b.until(`document.body.dataset.drawn === "4"`)
	b.want(5.0, `document.querySelectorAll("#features button").length`)
	b.clickElement(`#causes input`)
	b.until(`document.body.dataset.drawn === "6"`)

	// The wheel zooms about the mouse, dragging moves the map.
	place := b.eval(`screenOf(1)`).([]any)
	x, y := place[0].(float64), place[1].(float64)
	b.must("Input.dispatchMouseEvent", map[string]any{"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -300})
	b.until(fmt.Sprintf(`Math.hypot(screenOf(1)[0] - %v, screenOf(1)[1] - %v) < 2 && Math.abs(screenOf(2)[0] - %v) > 100`, x, y, x))
	for i, kind := range []string{"mousePressed", "mouseMoved", "mouseMoved", "mouseReleased"} {
		b.must("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": x + float64(i)*30, "y": y, "button": "left", "buttons": 1, "clickCount": 1})
	}
	b.until(fmt.Sprintf(`screenOf(1)[0] - %v > 50`, x))

	b.quiet()
}

// quiet checks that the page asked for nothing but itself, and that nothing in it went wrong.
func (b *browser) quiet() {
	b.t.Helper()
	for _, request := range b.seen("Network.requestWillBeSent") {
		var r struct{ Request struct{ URL string } }
		if err := json.Unmarshal([]byte(request), &r); err != nil || !strings.HasPrefix(r.Request.URL, "file://") || !strings.HasSuffix(r.Request.URL, "/map.html") {
			b.t.Errorf("the page asked for %s", r.Request.URL)
		}
	}
	for _, method := range []string{"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening"} {
		if seen := b.seen(method); len(seen) > 0 {
			b.t.Errorf("%s: %v", method, seen)
		}
	}
}

// What features hold must not become part of the page, and so run in the browser of
// the person who looks for what is wrong with them.
func TestPageOfHostileFeatures(t *testing.T) {
	t.Parallel()
	attacks := []string{
		`</script><script>window.taken = 1</script>`,
		`<img src=x onerror="window.taken = 1">`,
		`"><svg onload=window.taken=1>`,
		`{{.Script}} {{.Data}} ${window.taken = 1} <!-- <script>`,
		"\u2028\u2029 javascript:window.taken=1",
	}
	p := &export.Page{Title: strings.Join(attacks, " "), Filter: strings.Join(attacks, " "), Made: time.Now()}
	for i, a := range attacks {
		p.Add(&export.Feature{
			ID: int64(i + 1), FeatureID: a, BatchID: a, Status: a, Reason: a, FailedRule: a, Error: a, SourceCRS: a,
			LonLat: json.RawMessage(fmt.Sprintf(`{"type":"Point","coordinates":[%d,10]}`, i)),
		})
	}
	b := open(t, render(t, p))
	for i, a := range attacks {
		b.clickFeature(i + 1)
		b.want(fmt.Sprint(i+1), `document.body.dataset.selected`)
		b.want(a, `document.querySelector("#detail h2").textContent`)
	}
	b.want(nil, `window.taken`)
	b.want(0.0, `document.querySelectorAll("img, svg, iframe").length`)
	b.want(2.0, `document.querySelectorAll("script").length`)
	b.quiet()
}

func TestPageOfNothing(t *testing.T) {
	t.Parallel()
	b := open(t, render(t, &export.Page{Title: "Empty", Made: time.Now()}))
	b.want("0", `document.body.dataset.drawn`)
	b.quiet()
}

func TestPageHoldsNoMoreThanABrowserCarries(t *testing.T) {
	t.Parallel()
	p := &export.Page{Title: "Many", Made: time.Now()}
	point := json.RawMessage(`{"type":"Point","coordinates":[1,2]}`)
	for i := range 12_000 {
		p.Add(&export.Feature{ID: int64(i), Reason: "coerce_failed", LonLat: point})
	}
	page := render(t, p)
	if !bytes.Contains(page, []byte("12000 dead letters, 10000 of them on the map; 2000 were exported and are counted")) {
		t.Error("the page does not say how many it leaves out")
	}
	if !bytes.Contains(page, []byte(`"rows":12000`)) {
		t.Error("what is left out is not counted")
	}
	big := json.RawMessage(`{"type":"Point","coordinates":[1,` + strings.Repeat("1", 1<<20) + `]}`)
	p = &export.Page{Title: "Large", Made: time.Now()}
	for i := range 30 {
		p.Add(&export.Feature{ID: int64(i), LonLat: big})
	}
	if n := len(render(t, p)); n > 18<<20 {
		t.Errorf("the page is %d bytes", n)
	}
}
