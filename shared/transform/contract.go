package transform

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/paulmach/orb"

	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
	"geodlq/shared/geojson"
	"geodlq/shared/jsonscan"
)

// Contract is the transform that a JSON document describes: a Table Schema of the attributes
// (Frictionless, versions 1 and 2), beside it the target and the operator's overrides.
//
//	{
//	  "version": "parcels-7",
//	  "fields": [
//	    {"name": "parcel_id", "type": "string", "constraints": {"required": true, "pattern": "P-[0-9]+"}},
//	    {"name": "built_year", "type": "integer", "constraints": {"minimum": 1700}}
//	  ],
//	  "missingValues": ["", "n/a"],
//	  "target": {"epsg": 3857, "geometryType": "MultiPolygon", "unknownAttributes": "keep"},
//	  "overrides": [
//	    {"match": {"batchId": "county-2026-*"}, "sourceCrs": "EPSG:26910", "rename": {"PARCELID": "parcel_id"}}
//	  ]
//	}
//
// A Table Schema alone is a contract, too. Make one with [LoadContract] or [ParseContract]. It does not change and is safe for
// concurrent use.
type Contract struct {
	version   string
	target    Target
	unknown   string
	fields    map[string]*field // nil: attributes pass as they are
	required  []*field
	overrides []override
	warnings  []Problem
	limits    geojson.Limits
	crsOpts   []crs.Option

	mu       sync.RWMutex
	projects map[int]*project // by source
	names    map[string]int   // codes of CRS names met, at most maxNames
}

// project is the way from one source CRS to the target, and its label.
type project struct {
	*crs.Transformer
	rule string
}

// maxNames bounds the memory of CRS names: features of a batch name the same one, and a name may be
// a page of WKT that takes as long to read as the feature.
const maxNames = 256

// What becomes of attributes that the schema does not name.
const (
	keepUnknown   = "keep"
	dropUnknown   = "drop"
	rejectUnknown = "reject"
)

// Options are what the deployment says and the contract does not.
type Options struct {
	// MaxFeatureBytes is the largest payload taken; 0 is geojson.DefaultMaxBytes.
	MaxFeatureBytes int
	// AllowBallpark lets a CRS pass whose only way to the target is a rough one.
	AllowBallpark bool
}

// MaxContractBytes is the largest contract taken.
const MaxContractBytes = 4 << 20

// BuiltInVersion is the version of the contract that is used when none is given.
const BuiltInVersion = "built-in-1"

// Fetcher reads a contract from S3. It gives the whole object, or an error.
type Fetcher interface {
	Fetch(ctx context.Context, bucket, key string) ([]byte, error)
}

// LoadContract reads the contract that uri names: s3://bucket/key by way of fetcher, or a file
// (a path, or file:///path). An empty uri is the built-in contract, which keeps all attributes
// as they are, takes every geometry type, and writes EPSG:3857.
//
// A broken contract is a [*DocumentError] that names every problem. Call LoadContract at the
// start of every invocation: a contract that was changed in between is then in effect.
func LoadContract(ctx context.Context, uri string, fetcher Fetcher, opts Options) (*Contract, error) {
	if uri == "" {
		c := newContract(opts)
		c.version = BuiltInVersion
		return c, nil
	}
	text, err := read(ctx, uri, fetcher)
	if err != nil {
		return nil, fmt.Errorf("read contract %s: %w", uri, err)
	}
	return parseContract("contract "+uri, text, opts)
}

func read(ctx context.Context, uri string, fetcher Fetcher) ([]byte, error) {
	scheme, rest, ok := strings.Cut(uri, "://")
	if !ok {
		return os.ReadFile(uri)
	}
	switch scheme {
	case "s3":
		bucket, key, ok := strings.Cut(rest, "/")
		if !ok || bucket == "" || key == "" {
			return nil, fmt.Errorf("want the form s3://bucket/key")
		}
		if fetcher == nil {
			return nil, fmt.Errorf("there is no S3 client here to read it with")
		}
		return fetcher.Fetch(ctx, bucket, key)
	case "file":
		u, err := url.Parse(uri)
		if err != nil {
			return nil, err
		}
		if u.Host != "" {
			return nil, fmt.Errorf("want the form file:///path")
		}
		return os.ReadFile(u.Path)
	}
	return nil, fmt.Errorf("scheme %q is neither s3 nor file", scheme)
}

// ParseContract reads a contract from its text; see [Contract] for the form and [LoadContract] for the error.
func ParseContract(text []byte, opts Options) (*Contract, error) {
	return parseContract("the contract", text, opts)
}

func newContract(opts Options) *Contract {
	c := &Contract{
		target:   Target{EPSG: 3857, Repair: RepairStructure, MaxAreaChange: 0.5},
		unknown:  keepUnknown,
		limits:   geojson.Limits{MaxBytes: opts.MaxFeatureBytes},
		projects: make(map[int]*project),
		names:    make(map[string]int),
	}
	if opts.AllowBallpark {
		c.crsOpts = append(c.crsOpts, crs.AllowBallpark())
	}
	return c
}

func parseContract(what string, text []byte, opts Options) (*Contract, error) {
	if len(text) > MaxContractBytes {
		return nil, &DocumentError{Document: what, Problems: []Problem{{Message: fmt.Sprintf("it has %d bytes, more than %d", len(text), MaxContractBytes)}}}
	}
	c := newContract(opts)
	var d document
	d.contract(c, text)
	if len(d.problems) > 0 {
		return nil, &DocumentError{Document: what, Problems: d.problems}
	}
	c.warnings = d.warnings
	if c.version == "" {
		sum := sha256.Sum256(text)
		c.version = "sha256:" + hex.EncodeToString(sum[:8])
	}
	return c, nil
}

// Target says what the rows must look like in the end.
func (c *Contract) Target() Target { return c.target }

// Version is the document's version, or else the start of its SHA-256.
func (c *Contract) Version() string { return c.version }

// Warnings lists what the document says and the contract does not do, for the log.
func (c *Contract) Warnings() []Problem { return slices.Clone(c.warnings) }

// changes are the overrides in effect for one dead letter.
type changes struct {
	crs    string
	of     []*override // of the contract, in order
	by     Overrides   // of the operator
	exists bool
}

// Transform decodes, coerces and reprojects one feature.
func (c *Contract) Transform(_ context.Context, in Input) (Output, error) {
	change, err := c.changesFor(&in)
	if err != nil {
		return Output{}, err
	}
	f, err := c.decode(&in, &change)
	if err != nil {
		return Output{}, err
	}
	out := Output{FeatureID: identity(&in, f)}
	if out.Properties, err = c.properties(f.Properties, &change); err != nil {
		return Output{}, err
	}
	if out.SourceCRS, out.SourceEPSG, err = c.sourceCRS(&in, f, &change); err != nil {
		return Output{}, err
	}
	out.SourceGeometry = f.Geometry
	if out.Geometry, err = c.target.conform(f.Geometry); err != nil {
		return Output{}, err
	}
	if err := c.reproject(&out); err != nil {
		return Output{}, withRule(err, RuleReproject(out.SourceEPSG, c.target.EPSG))
	}
	if in.direct() && in.GeomHash != "" {
		out.GeomHash = in.GeomHash
	} else {
		out.GeomHash = deadletter.GeomHash(out.FeatureID, out.SourceEPSG, out.SourceGeometry)
	}
	return out, nil
}

// identity names the feature: by the record, else by its own id, else by the task it
// failed in. Two features must not share an empty name: of one shape, they would be one.
func identity(in *Input, f *geojson.Feature) string {
	switch {
	case in.FeatureID != "":
		return in.FeatureID
	case f.HasID && f.ID != "":
		return f.ID
	}
	return in.TaskID
}

func (c *Contract) changesFor(in *Input) (changes, error) {
	var change changes
	for i := range c.overrides {
		o := &c.overrides[i]
		if !o.matches(in) {
			continue
		}
		change.exists = true
		change.of = append(change.of, o)
		if o.crs != "" {
			change.crs = o.crs
		}
	}
	if len(in.Overrides) > 0 {
		by, err := ParseOverrides(in.Overrides)
		if err != nil {
			return changes{}, fmt.Errorf("apply what the operator changed: %w", err)
		}
		change.exists, change.by = true, by
		if by.SourceCRS != "" {
			change.crs = by.SourceCRS
		}
	}
	return change, nil
}

// direct reports whether the geometry comes from the row. A payload that is there but
// empty is one that was received so, and no JSON.
func (in *Input) direct() bool {
	return in.Payload == nil || len(in.Payload) == 0 && in.Geometry != nil
}

// decode reads the payload, or takes the geometry of a row that has none.
func (c *Contract) decode(in *Input, change *changes) (*geojson.Feature, error) {
	if !in.direct() {
		f, err := geojson.Decode(in.Payload, c.limits)
		if change.by.Geometry != nil {
			// The geometry in the text does not matter, then: neither what is wrong with it nor its CRS.
			if fault, ok := deadletter.AsFault(err); ok && fault.Rule == geojson.RuleGeometry {
				err = nil
			}
			f.Geometry, f.GeometryCRS = change.by.Geometry, nil
		}
		return f, err
	}
	f := &geojson.Feature{Geometry: change.by.Geometry}
	if f.Geometry != nil {
		return f, nil
	}
	if in.Geometry == nil {
		return nil, deadletter.Faultf(deadletter.ReasonNullGeometry, geojson.RuleGeometry, "the row has neither a payload nor a geometry")
	}
	g, err := geojson.Clean(orb.Clone(in.Geometry))
	if err != nil {
		return nil, err
	}
	f.Geometry = g
	return f, nil
}

// properties writes the JSON object of the target's properties.
func (c *Contract) properties(source []geojson.Property, change *changes) ([]byte, error) {
	if change.exists {
		var err error
		if source, err = change.apply(source); err != nil {
			return nil, err
		}
	}
	size := 2
	for i := range source {
		size += len(source[i].Name) + len(source[i].Raw) + len(`"":,`)
	}
	out := append(make([]byte, 0, size), '{')
	var present []bool
	if len(c.required) > 0 {
		present = make([]bool, len(c.fields))
	}
	for i := range source {
		p := &source[i]
		raw := p.Raw
		f := c.fields[p.Name]
		if f == nil {
			if c.unknown == dropUnknown {
				continue
			}
			if c.unknown == rejectUnknown {
				name := label(p.Name)
				return nil, deadletter.Faultf(deadletter.ReasonConstraintFailed, "attributes:"+name,
					"the contract has no attribute %s and rejects what it does not know", name)
			}
		} else {
			v, message := f.coerce(raw)
			if message != "" {
				return nil, &deadletter.Fault{Reason: deadletter.ReasonCoerceFailed, Rule: f.coerceRule, Detail: message}
			}
			raw = v.raw
			if !v.null {
				if present != nil {
					present[f.index] = true
				}
				if fault := checkStorable(p.Name, raw); fault != nil {
					return nil, fault
				}
				if message := f.check(v); message != "" {
					return nil, &deadletter.Fault{Reason: deadletter.ReasonConstraintFailed, Rule: f.constrainRule, Detail: message}
				}
			}
		}
		fault := checkStorableName(p.Name, p.Name)
		if fault == nil && f == nil {
			fault = checkStorable(p.Name, raw)
		}
		if fault != nil {
			return nil, fault
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(jsonscan.AppendQuoted(out, p.Name), ':')
		out = append(out, raw...)
	}
	for _, f := range c.required {
		if !present[f.index] {
			return nil, deadletter.Faultf(deadletter.ReasonMissingAttribute, f.requireRule, "%s is required, but it is absent or null", label(f.name))
		}
	}
	return append(out, '}'), nil
}

// apply returns the properties after every override in effect.
func (ch *changes) apply(source []geojson.Property) ([]geojson.Property, error) {
	list := slices.Clone(source)
	for _, o := range ch.of {
		var err error
		if list, err = rename(list, o.rename); err != nil {
			return nil, err
		}
		for i := range list {
			by := o.values[list[i].Name]
			if by == nil {
				continue
			}
			text := list[i].Raw
			if jsonscan.KindOf(text) == jsonscan.KindString {
				unquoted, err := jsonscan.Unquote(text)
				if err != nil {
					continue // a lone surrogate, which no value of the contract has
				}
				text = unquoted
			}
			if value, ok := by[string(text)]; ok {
				list[i].Raw = value
			}
		}
	}
	list, err := rename(list, ch.by.Rename)
	if err != nil {
		return nil, err
	}
	for _, p := range ch.by.Set {
		if at := slices.IndexFunc(list, func(q geojson.Property) bool { return q.Name == p.Name }); at >= 0 {
			list[at].Raw = p.Raw
		} else {
			list = append(list, p)
		}
	}
	return list, nil
}

// rename gives attributes their new names. Where the new name is taken, a null gives way; two
// values that differ are ambiguous.
func rename(list []geojson.Property, names map[string]string) ([]geojson.Property, error) {
	if len(names) == 0 {
		return list, nil
	}
	renamed := make([]geojson.Property, 0, len(list))
	at := make(map[string]int, len(list))
	for _, p := range list {
		if name, ok := names[p.Name]; ok {
			p.Name = name
		}
		i, taken := at[p.Name]
		switch {
		case !taken:
			at[p.Name] = len(renamed)
			renamed = append(renamed, p)
		case jsonscan.KindOf(renamed[i].Raw) == jsonscan.KindNull:
			renamed[i].Raw = p.Raw
		case jsonscan.KindOf(p.Raw) != jsonscan.KindNull && !jsonscan.Equal(renamed[i].Raw, p.Raw):
			name := label(p.Name)
			return nil, deadletter.Faultf(deadletter.ReasonAmbiguousJSON, "attributes:"+name,
				"renaming makes two attributes %s with different values, %s and %s", name, quoteExcerpt(renamed[i].Raw), quoteExcerpt(p.Raw))
		}
	}
	return renamed, nil
}

// sourceCRS says which CRS the source geometry is in, by name and code.
func (c *Contract) sourceCRS(in *Input, f *geojson.Feature, change *changes) (name string, code int, err error) {
	switch {
	case change.crs != "":
		name = change.crs
		code, err = c.resolve(name)
	case in.direct() && in.EPSG != 0:
		name, code = fmt.Sprintf("EPSG:%d", in.EPSG), in.EPSG
		if in.SourceCRS == nil {
			break
		}
		// The row has a code and a name as well; they must agree.
		if named, err := c.resolve(*in.SourceCRS); err != nil || named != code {
			if fault, ok := deadletter.AsFault(err); ok && fault.Reason == deadletter.ReasonMissingCRS {
				break
			}
			return "", 0, deadletter.Faultf(deadletter.ReasonCRSConflict, RuleResolveCRS, "the row has epsg %d, but source_crs %q", code, *in.SourceCRS)
		}
	default:
		name, code, err = resolveCRS(in.SourceCRS, f, c.resolve)
	}
	if err != nil {
		return "", 0, withRule(err, RuleResolveCRS)
	}
	return name, code, nil
}

// resolve is crs.Resolve with a memory.
func (c *Contract) resolve(name string) (int, error) {
	c.mu.RLock()
	code, ok := c.names[name]
	c.mu.RUnlock()
	if ok {
		return code, nil
	}
	code, err := crs.Resolve(name)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	if len(c.names) < maxNames {
		c.names[strings.Clone(name)] = code
	}
	c.mu.Unlock()
	return code, nil
}

// ResolveCRS says which CRS a feature is in: what its record names, else its crs member, else that of its
// geometry. Those that are there must agree; name is the spelling that decided, verbatim.
// The error is a *deadletter.Fault: missing_crs, unknown_crs or crs_conflict.
func ResolveCRS(record *string, f *geojson.Feature) (name string, code int, err error) {
	return resolveCRS(record, f, crs.Resolve)
}

func resolveCRS(record *string, f *geojson.Feature, resolve func(name string) (int, error)) (name string, code int, err error) {
	type source struct {
		what, name string
		code       int
	}
	var first *source
	var missing error
	take := func(what, name string, code int, err error) error {
		if fault, ok := deadletter.AsFault(err); ok && fault.Reason == deadletter.ReasonMissingCRS {
			missing = err // null, empty or 0 says nothing
			return nil
		}
		switch {
		case first == nil && err != nil:
			return err
		case first == nil:
			first = &source{what, name, code}
		case err != nil:
			return deadletter.Faultf(deadletter.ReasonCRSConflict, RuleResolveCRS, "%s says %q, but %s cannot be resolved: %v", first.what, label(first.name), what, err)
		case code != first.code:
			return deadletter.Faultf(deadletter.ReasonCRSConflict, RuleResolveCRS, "%s says %q (EPSG:%d), but %s says %q (EPSG:%d)",
				first.what, label(first.name), first.code, what, label(name), code)
		}
		return nil
	}
	if record != nil {
		code, err := resolve(*record)
		if err := take("the record", *record, code, err); err != nil {
			return "", 0, withRule(err, RuleResolveCRS)
		}
	}
	for _, member := range []struct {
		what string
		raw  []byte
	}{{"the feature's crs member", f.CRS}, {"the geometry's crs member", f.GeometryCRS}} {
		if member.raw == nil {
			continue
		}
		name, code, err := crs.ResolveMember(member.raw)
		if err := take(member.what, name, code, err); err != nil {
			return "", 0, withRule(err, RuleResolveCRS)
		}
	}
	if first == nil {
		if missing != nil {
			return "", 0, withRule(missing, RuleResolveCRS)
		}
		return "", 0, deadletter.Faultf(deadletter.ReasonMissingCRS, RuleResolveCRS, "neither the record nor the feature names a CRS; set source_crs")
	}
	return first.name, first.code, nil
}

// withRule gives a fault that has no rule the one of the stage.
func withRule(err error, rule string) error {
	if fault, ok := deadletter.AsFault(err); ok && fault.Rule == "" {
		labelled := *fault
		labelled.Rule = rule
		return &labelled
	}
	return err
}

// reproject moves the geometry of the output from its source CRS to the target's.
func (c *Contract) reproject(out *Output) error {
	p, err := c.projectFrom(out.SourceEPSG)
	if err != nil {
		return err
	}
	if out.Geometry, err = p.Transform(out.Geometry); err != nil {
		return err
	}
	out.Engine, out.EPSG, out.Rule = p.Engine(), c.target.EPSG, p.rule
	if out.Engine == crs.EnginePostGIS {
		out.EPSG = out.SourceEPSG
	}
	return nil
}

func (c *Contract) projectFrom(source int) (*project, error) {
	c.mu.RLock()
	p := c.projects[source]
	c.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	t, err := crs.New(source, c.target.EPSG, c.crsOpts...)
	if err != nil {
		return nil, err
	}
	p = &project{t, RuleReproject(source, c.target.EPSG)}
	c.mu.Lock()
	c.projects[source] = p
	c.mu.Unlock()
	return p, nil
}
