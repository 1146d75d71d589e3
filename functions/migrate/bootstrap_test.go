package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"geodlq/infra/local"
	"geodlq/infra/local/localtest"
	"geodlq/infra/migrations"
)

// event reads events/<name>.json and lets it answer to c, if it answers to anyone.
func event(t *testing.T, name string, c *cloudFormation) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "events", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var e map[string]any
	if err := json.Unmarshal(text, &e); err != nil {
		t.Fatal(err)
	}
	if e["ResponseURL"] != nil {
		e["ResponseURL"] = c.URL + "/response?" + url.Values{"Signature": {"s3cr3t"}}.Encode()
	}
	text, err = json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The events that stand in events/, one after another on one database, through the
// function as it is deployed.
func TestBootstrapOnEveryEvent(t *testing.T) {
	t.Parallel()
	db := localtest.EmptyDatabase(t)
	f := localtest.Function(t, "migrate", map[string]string{"DATABASE_URL": db, "DATABASE_HOST": ""})
	latest := float64(migrations.Latest())
	for _, step := range []struct {
		event    string
		from, to float64
	}{
		{"migrate-create", 0, latest},
		{"migrate-update", latest, latest},
		{"migrate", latest, latest},
		{"migrate-delete", 0, 0},
	} {
		c := newCloudFormation(t, http.StatusOK)
		response, err := f.Invoke(t.Context(), event(t, step.event, c))
		if err != nil {
			t.Fatalf("%s: %v", step.event, err)
		}
		var answer struct{ From, To float64 }
		if err := json.Unmarshal(response, &answer); err != nil {
			t.Fatalf("%s: %v", step.event, err)
		}
		if answer.From != step.from || answer.To != step.to {
			t.Errorf("%s: %s, want from %v to %v", step.event, response, step.from, step.to)
		}
		told := c.told(t)
		if step.event == "migrate" {
			if len(told) != 0 {
				t.Errorf("%s: told CloudFormation %v", step.event, told)
			}
			continue
		}
		if len(told) != 1 || told[0]["Status"] != "SUCCESS" || told[0]["PhysicalResourceId"] != "geodlq-schema" {
			t.Errorf("%s: told CloudFormation %v", step.event, told)
			continue
		}
		if data, _ := told[0]["Data"].(map[string]any); step.event != "migrate-delete" {
			if d := cmp.Diff(map[string]any{"From": step.from, "To": step.to}, data); d != "" {
				t.Errorf("%s: %s", step.event, d)
			}
		}
	}
}

// A configuration that cannot be used must not leave a deployment hanging.
func TestBootstrapWithAnUnusableConfiguration(t *testing.T) {
	t.Parallel()
	f := localtest.Function(t, "migrate", map[string]string{"DATABASE_URL": "", "DATABASE_HOST": "", "LOG_LEVEL": "LOUD"})
	c := newCloudFormation(t, http.StatusOK)
	if _, err := f.Invoke(t.Context(), event(t, "migrate-create", c)); err != nil {
		t.Fatal(err)
	}
	told := c.told(t)
	if len(told) != 1 || told[0]["Status"] != "FAILED" {
		t.Fatalf("told CloudFormation %v", told)
	}
	reason, _ := told[0]["Reason"].(string)
	if !strings.Contains(reason, `LOG_LEVEL="LOUD"`) {
		t.Errorf("the reason is %q", reason)
	}
	if _, err := f.Invoke(t.Context(), []byte("{}")); err == nil || !strings.Contains(err.Error(), "LOG_LEVEL") {
		t.Errorf("invoked directly: %v", err)
	}
}

// What the function logs is JSON, a line each, and holds no secret.
func TestBootstrapLogs(t *testing.T) {
	t.Parallel()
	db := localtest.Database(t)
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	var logs bytes.Buffer
	f := localtest.Function(t, "migrate", map[string]string{"DATABASE_URL": db, "DATABASE_HOST": ""}, func(c *local.FunctionConfig) { c.Logs = &logs })
	if _, err := f.Invoke(t.Context(), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(logs.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
	if password != "" && strings.Contains(logs.String(), password) {
		t.Error("the log shows the database's password")
	}
}
