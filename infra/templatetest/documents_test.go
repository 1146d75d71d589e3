package templatetest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"geodlq/shared/config"
)

// The README's table of settings is the one that the code gives.
func TestTheREADMEListsTheSettings(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), config.Table()) {
		t.Errorf("README.md does not hold the table of settings; it is:\n\n%s", config.Table())
	}
}

// A runbook is of use only if it knows the alarm that rings.
func TestTheREADMEKnowsEveryAlarm(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	tmpl := load(t, "template.yaml")
	for _, id := range tmpl.resources("AWS::CloudWatch::Alarm") {
		name, _ := at(tmpl.properties(id)["AlarmName"], "Fn::Sub").(string)
		if name = strings.TrimPrefix(name, "${AWS::StackName}-"); !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("README.md does not say what to do about the alarm `%s`", name)
		}
	}
}

// Each event is for a function, by its name, and is JSON.
func TestEvents(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "events", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(text) {
			t.Errorf("%s is not JSON", filepath.Base(name))
		}
		base := strings.TrimSuffix(filepath.Base(name), ".json")
		if base == "env" {
			continue
		}
		function, _, _ := strings.Cut(base, "-")
		if !slices.Contains(config.Functions(), function) {
			t.Errorf("%s.json is for no function", base)
		}
		seen[function] = true
	}
	for _, function := range config.Functions() {
		if !seen[function] {
			t.Errorf("no event for %s", function)
		}
	}
}

// "sam local invoke --env-vars" ignores what the template does not name.
func TestEnvironmentForSAMLocal(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "events", "env.json"))
	if err != nil {
		t.Fatal(err)
	}
	var env map[string]map[string]string
	if err := json.Unmarshal(text, &env); err != nil {
		t.Fatal(err)
	}
	tmpl := load(t, "template.yaml")
	if len(env) != len(config.Functions()) {
		t.Errorf("env.json is for %d functions, want %d", len(env), len(config.Functions()))
	}
	for _, function := range config.Functions() {
		given := env[logicalID(function)]
		known := environment(tmpl, function)
		for name := range given {
			if _, ok := known[name]; !ok {
				t.Errorf("env.json sets %s of %s, which the template does not name", name, function)
			}
		}
		if given["DATABASE_URL"] == "" || given["DATABASE_HOST"] != "" {
			t.Errorf("env.json does not send %s to the local database", function)
		}
		if _, ok := given["DATABASE_HOST"]; !ok {
			t.Errorf("env.json leaves %s the database of the cloud", function)
		}
	}
}
