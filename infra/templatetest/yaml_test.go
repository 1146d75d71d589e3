// Package templatetest holds tests over what is deployed: the two templates, what
// they say against what the code reads, and what the built functions consist of.
package templatetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// root is the repository's root, seen from this package.
const root = "../.."

// A template is a CloudFormation template in which the short forms of functions are
// spelled out: !Ref x is {"Ref": "x"}, !GetAtt a.b is {"Fn::GetAtt": ["a", "b"]}.
type template map[string]any

func load(t *testing.T, name string) template {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	v, err := plain(doc.Content[0])
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v.(map[string]any)
}

func plain(n *yaml.Node) (any, error) {
	if n.Kind == yaml.AliasNode {
		return nil, fmt.Errorf("line %d: CloudFormation need not know YAML aliases", n.Line)
	}
	var v any
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if _, ok := m[key]; ok {
				return nil, fmt.Errorf("line %d: %s stands twice", n.Content[i].Line, key)
			}
			value, err := plain(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			m[key] = value
		}
		v = m
	case yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			value, err := plain(c)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		v = list
	default:
		if strings.HasPrefix(n.Tag, "!!") {
			if err := n.Decode(&v); err != nil {
				return nil, err
			}
		} else {
			v = n.Value
		}
	}
	switch tag := strings.TrimPrefix(n.Tag, "!"); {
	case strings.HasPrefix(n.Tag, "!!"):
		return v, nil
	case tag == "Ref" || tag == "Condition":
		return map[string]any{tag: v}, nil
	case tag == "GetAtt":
		resource, attribute, _ := strings.Cut(v.(string), ".")
		return map[string]any{"Fn::GetAtt": []any{resource, attribute}}, nil
	default:
		return map[string]any{"Fn::" + tag: v}, nil
	}
}

// at follows keys into nested maps; nil where there is no such thing.
func at(v any, keys ...string) any {
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

func (t template) section(name string) map[string]any {
	m, _ := t[name].(map[string]any)
	return m
}

// resources lists the logical ids of a type, sorted.
func (t template) resources(kind string) []string {
	var ids []string
	for id, r := range t.section("Resources") {
		if at(r, "Type") == kind {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	return ids
}

func (t template) properties(id string) map[string]any {
	m, _ := at(t.section("Resources"), id, "Properties").(map[string]any)
	return m
}

// ref is the name of a {"Ref": name}, else "".
func ref(v any) string {
	s, _ := at(v, "Ref").(string)
	return s
}

// attribute is the resource of a {"Fn::GetAtt": [resource, name]}, else "".
func attribute(v any, name string) string {
	list, _ := at(v, "Fn::GetAtt").([]any)
	if len(list) != 2 || list[1] != name {
		return ""
	}
	return list[0].(string)
}

// walk visits every value under v, with the keys that lead to it.
func walk(v any, visit func(path []string, v any), path ...string) {
	visit(path, v)
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			walk(e, visit, append(slices.Clone(path), k)...)
		}
	case []any:
		for i, e := range v {
			walk(e, visit, append(slices.Clone(path), fmt.Sprint(i))...)
		}
	}
}

// texts is a value that is one string or a list of them.
func texts(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var list []string
		for _, e := range v {
			if s, ok := e.(string); ok {
				list = append(list, s)
			}
		}
		return list
	}
	return nil
}
