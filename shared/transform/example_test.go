package transform_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/paulmach/orb"

	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
	"geodlq/shared/geojson"
	"geodlq/shared/transform"
)

// Sensors is a transform of one's own: it lifts readings out of a nested object, which
// no contract can say.
type Sensors struct{}

func (Sensors) Target() transform.Target {
	return transform.Target{EPSG: 3857, GeometryType: "Point", Repair: transform.RepairOff}
}

func (Sensors) Version() string { return "sensors-3" }

func (s Sensors) Transform(_ context.Context, in transform.Input) (transform.Output, error) {
	f, err := geojson.Decode(in.Payload, geojson.Limits{})
	if err != nil {
		return transform.Output{}, err // a *deadletter.Fault, which names the reason
	}
	name, code, err := transform.ResolveCRS(in.SourceCRS, f)
	if err != nil {
		return transform.Output{}, err
	}
	celsius, err := reading(f.Properties)
	if err != nil {
		return transform.Output{}, err
	}
	properties, err := json.Marshal(map[string]float64{"celsius": celsius})
	if err != nil {
		return transform.Output{}, err
	}
	project, err := crs.New(code, s.Target().EPSG)
	if err != nil {
		return transform.Output{}, err
	}
	out := transform.Output{
		FeatureID: in.FeatureID, Properties: properties,
		SourceGeometry: f.Geometry, SourceEPSG: code, SourceCRS: name,
		EPSG: s.Target().EPSG, Engine: project.Engine(),
		GeomHash: deadletter.GeomHash(in.FeatureID, code, f.Geometry),
		Rule:     transform.RuleReproject(code, s.Target().EPSG),
	}
	if out.Engine == crs.EnginePostGIS {
		out.EPSG = code // Transform only checks; the database transforms
	}
	out.Geometry, err = project.Transform(f.Geometry)
	return out, err
}

func reading(properties []geojson.Property) (float64, error) {
	for _, p := range properties {
		if p.Name != "reading" {
			continue
		}
		var r struct{ Celsius *float64 }
		if err := json.Unmarshal(p.Raw, &r); err != nil || r.Celsius == nil {
			return 0, deadletter.Faultf(deadletter.ReasonCoerceFailed, "coerce:reading->celsius", "reading is %.60s, want an object with celsius", p.Raw)
		}
		return *r.Celsius, nil
	}
	return 0, deadletter.Faultf(deadletter.ReasonMissingAttribute, "require:reading", "there is no reading")
}

// A program puts its own transform in the place of the contract by implementing [transform.Transformer].
func ExampleTransformer() {
	var t transform.Transformer = Sensors{}
	mercator := "EPSG:3857"
	for _, properties := range []string{`{"reading":{"celsius":21.5}}`, `{"reading":"21,5"}`} {
		out, err := transform.Run(context.Background(), t, transform.Input{
			FeatureID: "s-1", SourceCRS: &mercator,
			Payload: []byte(`{"type":"Feature","properties":` + properties + `,"geometry":{"type":"Point","coordinates":[-13617470.5,5919507.75]}}`),
		})
		if err != nil {
			class, reason := transform.Classify(err)
			fmt.Println(class, reason, "-", err)
			continue
		}
		fmt.Println(out.Geometry.(orb.Point), string(out.Properties))
	}
	// Output:
	// [-1.36174705e+07 5.91950775e+06] {"celsius":21.5}
	// data coerce_failed - coerce_failed: reading is "21,5", want an object with celsius
}
