package config

import (
	"reflect"
	"slices"
	"strings"
)

// Setting describes one environment variable for people and for tests.
type Setting struct {
	Name      string
	Default   string // as written in the environment; empty if none
	Allowed   string
	Meaning   string
	Required  bool
	Secret    bool
	Functions []string // the functions that read it, in Functions order
}

// Functions names the deployed functions.
func Functions() []string {
	var names []string
	for _, f := range functions() {
		names = append(names, f.name())
	}
	return names
}

func functions() []function {
	return []function{&Capture{}, &Replay{}, &Metrics{}, &Redrive{}, &Migrate{}}
}

// Settings lists every variable that some function reads, in the order of the
// structs, each once.
func Settings() []Setting {
	var list []Setting
	for _, fn := range functions() {
		for _, f := range fieldsOf(reflect.TypeOf(fn).Elem()) {
			i := slices.IndexFunc(list, func(s Setting) bool { return s.Name == f.key })
			if i < 0 {
				list = append(list, Setting{
					Name: f.key, Default: f.tag.Get("envDefault"), Allowed: f.permitted(),
					Meaning: f.tag.Get("help"), Required: f.required(), Secret: f.secret(),
				})
				i = len(list) - 1
			}
			list[i].Functions = append(list[i].Functions, fn.name())
		}
	}
	return list
}

// Table is [Settings] as the Markdown table of the README.
func Table() string {
	var b strings.Builder
	b.WriteString("| variable | read by | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, s := range Settings() {
		by := strings.Join(s.Functions, ", ")
		if len(s.Functions) == len(functions()) {
			by = "all"
		}
		def := "none"
		switch {
		case s.Required:
			def = "required"
		case s.Default != "":
			def = "`" + s.Default + "`"
		}
		allowed := s.Allowed
		if allowed == "" {
			allowed = "any text"
		}
		for _, cell := range []string{"`" + s.Name + "`", by, def, allowed, s.Meaning} {
			b.WriteString("| " + strings.ReplaceAll(cell, "|", "\\|") + " ")
		}
		b.WriteString("|\n")
	}
	return b.String()
}
