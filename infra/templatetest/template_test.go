package templatetest

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"geodlq/shared/config"
)

// logicalID is a function's name in the template.
func logicalID(function string) string {
	return strings.ToUpper(function[:1]) + function[1:] + "Function"
}

func TestTheTemplateHasTheFunctionsAndNoOthers(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	var want []string
	for _, name := range config.Functions() {
		want = append(want, logicalID(name))
	}
	sort.Strings(want)
	if d := cmp.Diff(want, tmpl.resources("AWS::Serverless::Function")); d != "" {
		t.Error(d)
	}
	for key, want := range map[string]any{
		"Runtime": "provided.al2023", "Handler": "bootstrap", "Architectures": []any{"arm64"}, "CodeUri": ".",
		"Tracing": "Active", "RecursiveLoop": "Terminate",
	} {
		if d := cmp.Diff(want, at(tmpl.section("Globals"), "Function", key)); d != "" {
			t.Errorf("Globals.Function.%s: %s", key, d)
		}
	}
}

func TestEveryFunctionIsWatchedAndLosesNothing(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	resources := tmpl.section("Resources")

	alarmed := map[string]bool{} // functions with an alarm on errors
	watched := map[string]bool{} // queues with an alarm on what waits in them
	for _, id := range tmpl.resources("AWS::CloudWatch::Alarm") {
		p := tmpl.properties(id)
		dimensions, _ := p["Dimensions"].([]any)
		if len(dimensions) == 0 {
			t.Errorf("%s has no dimension", id)
			continue
		}
		switch value := at(dimensions[0], "Value"); p["MetricName"] {
		case "Errors":
			alarmed[ref(value)] = true
		case "ApproximateNumberOfMessagesVisible":
			watched[attribute(value, "QueueName")] = true
		}
		if d := cmp.Diff([]any{"HasAlarmTopic", []any{map[string]any{"Ref": "AlarmTopicArn"}}, map[string]any{"Ref": "AWS::NoValue"}}, at(p, "AlarmActions", "Fn::If")); d != "" {
			t.Errorf("%s does not reach the alarm topic: %s", id, d)
		}
		if p["TreatMissingData"] == nil || len(fmt.Sprint(p["AlarmDescription"])) < 30 {
			t.Errorf("%s does not say what it means or what missing data mean", id)
		}
	}
	for _, name := range config.Functions() {
		id := logicalID(name)
		p := tmpl.properties(id)
		if !alarmed[id] {
			t.Errorf("%s has no alarm on its errors", id)
		}
		if at(resources, id, "Metadata", "BuildMethod") != "makefile" {
			t.Errorf("%s is not built by the Makefile", id)
		}
		group := ref(at(p, "LoggingConfig", "LogGroup"))
		if at(resources, group, "Type") != "AWS::Logs::LogGroup" || ref(tmpl.properties(group)["RetentionInDays"]) != "LogRetentionDays" {
			t.Errorf("%s has no log group with retention", id)
		}
		if at(p, "LoggingConfig", "LogFormat") != "JSON" {
			t.Errorf("%s does not log JSON", id)
		}
		if got, want := attribute(p["Role"], "Arn"), strings.TrimSuffix(id, "Function")+"Role"; got != want {
			t.Errorf("%s has the role %q, want one of its own, %s", id, got, want)
		}
		queue := attribute(at(p, "EventInvokeConfig", "DestinationConfig", "OnFailure", "Destination"), "Arn")
		if name == "migrate" {
			queue = attribute(at(tmpl.properties("MigrateFailureDestination"), "DestinationConfig", "OnFailure", "Destination"), "Arn")
		}
		if at(resources, queue, "Type") != "AWS::SQS::Queue" || !watched[queue] {
			t.Errorf("%s: a failed invocation goes to %q, want a queue with an alarm", id, queue)
		}
		if name != "migrate" && at(resources, id, "DependsOn") != "Schema" {
			t.Errorf("%s does not wait for the schema", id)
		}
	}

	// Capture's events: a queue that gives up into one that is watched, and that
	// hides a message for as long as Lambda advises.
	inbox := at(tmpl.properties("CaptureFunction"), "Events", "Inbox", "Properties")
	queue := attribute(at(inbox, "Queue"), "Arn")
	given := attribute(at(tmpl.properties(queue), "RedrivePolicy", "deadLetterTargetArn"), "Arn")
	if !watched[given] {
		t.Errorf("what capture gives up goes to %q, which has no alarm", given)
	}
	if d := cmp.Diff([]any{"ReportBatchItemFailures"}, at(inbox, "FunctionResponseTypes")); d != "" {
		t.Error(d)
	}
	timeout, visibility := at(tmpl.properties("CaptureFunction"), "Timeout").(int), at(tmpl.properties(queue), "VisibilityTimeout").(int)
	if visibility < 6*timeout {
		t.Errorf("a message is hidden for %d s, want at least 6 times capture's time-out of %d s", visibility, timeout)
	}
	for _, target := range at(tmpl.properties("InboxRule"), "Targets").([]any) {
		if attribute(at(target, "Arn"), "Arn") != queue || attribute(at(target, "DeadLetterConfig", "Arn"), "Arn") != given {
			t.Errorf("the inbox rule delivers to %v", target)
		}
	}
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	for _, name := range []string{"replay", "metrics"} {
		id := logicalID(name)
		p, ok := at(tmpl.properties(id), "Events", "Schedule", "Properties").(map[string]any)
		if !ok {
			t.Errorf("%s has no schedule", id)
			continue
		}
		if at(p, "Name", "Fn::Sub") != "${AWS::StackName}-"+name {
			t.Errorf("%s: the schedule's name is not its stack's own, so two stacks would share it", id)
		}
		if attribute(at(p, "DeadLetterConfig", "Arn"), "Arn") != "FailedInvocationQueue" {
			t.Errorf("%s: what the schedule cannot deliver is lost", id)
		}
		var input map[string]string
		if err := json.Unmarshal([]byte(p["Input"].(string)), &input); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		want := map[string]string{"scheduled_time": "<aws.scheduler.scheduled-time>", "execution_id": "<aws.scheduler.execution-id>"}
		if d := cmp.Diff(want, input); d != "" {
			t.Errorf("%s: %s", id, d)
		}
	}
	for _, other := range []struct{ function, event, schedule, input string }{
		{"MetricsFunction", "Check", "check", `{"check":true}`},
		{"RedriveFunction", "Continue", "redrive", `{"action":"continue"}`},
	} {
		p, _ := at(tmpl.properties(other.function), "Events", other.event, "Properties").(map[string]any)
		if p["Input"] != other.input || at(p, "Name", "Fn::Sub") != "${AWS::StackName}-"+other.schedule || attribute(at(p, "DeadLetterConfig", "Arn"), "Arn") != "FailedInvocationQueue" {
			t.Errorf("%s of %s is %v", other.event, other.function, p)
		}
	}
	// Whatever has a schedule, the scheduler's role may invoke, and nothing else.
	var scheduled, invoked []string
	for _, id := range tmpl.resources("AWS::Serverless::Function") {
		events, _ := tmpl.properties(id)["Events"].(map[string]any)
		for _, e := range events {
			if at(e, "Type") == "ScheduleV2" && !slices.Contains(scheduled, id) {
				scheduled = append(scheduled, id)
			}
		}
	}
	for _, s := range statements(tmpl.properties("SchedulerRole")) {
		if s["Action"] == "lambda:InvokeFunction" {
			for _, r := range s["Resource"].([]any) {
				invoked = append(invoked, attribute(r, "Arn"))
			}
		}
	}
	sort.Strings(invoked)
	if d := cmp.Diff(scheduled, invoked); d != "" {
		t.Errorf("scheduled and allowed: %s", d)
	}
	// The windows one may choose, each with the rate and the period that are it.
	windows := at(tmpl.section("Parameters"), "MetricsWindow", "AllowedValues").([]any)
	mapping := at(tmpl.section("Mappings"), "Window").(map[string]any)
	if len(windows) != len(mapping) {
		t.Errorf("%d windows to choose from and %d mapped", len(windows), len(mapping))
	}
	for _, w := range windows {
		length, err := time.ParseDuration(w.(string))
		if err != nil {
			t.Fatal(err)
		}
		rate := fmt.Sprintf("rate(%d minutes)", int(length.Minutes()))
		switch length {
		case time.Minute:
			rate = "rate(1 minute)"
		case time.Hour:
			rate = "rate(1 hour)"
		}
		if d := cmp.Diff(map[string]any{"Rate": rate, "Seconds": int(length.Seconds())}, mapping[w.(string)]); d != "" {
			t.Errorf("%s: %s", w, d)
		}
	}
}

// A lease must outlive the run that holds it, or rows go to a second worker while the
// first one still has them.
func TestALeaseOutlivesARun(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	lease, err := time.ParseDuration(at(tmpl.section("Parameters"), "Lease", "Default").(string))
	if err != nil {
		t.Fatal(err)
	}
	timeout := time.Duration(tmpl.properties("ReplayFunction")["Timeout"].(int)) * time.Second
	if lease <= timeout {
		t.Errorf("a lease of %s and runs of up to %s", lease, timeout)
	}
}

func environment(tmpl template, function string) map[string]any {
	merged := map[string]any{}
	for _, env := range []any{
		at(tmpl.section("Globals"), "Function", "Environment", "Variables"),
		at(tmpl.properties(logicalID(function)), "Environment", "Variables"),
	} {
		vars, _ := env.(map[string]any)
		for k, v := range vars {
			merged[k] = v
		}
	}
	return merged
}

// The SDK reads these; they stand in the template, empty, because "sam local invoke"
// sets only variables that do.
var forSAMLocal = []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_CLOUDWATCH"}

// Lambda sets these and lets nobody else.
var setByLambda = []string{"AWS_REGION"}

func TestEnvironmentIsWhatTheFunctionsRead(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	for _, function := range config.Functions() {
		want := slices.Clone(forSAMLocal)
		for _, s := range config.Settings() {
			if slices.Contains(s.Functions, function) && !slices.Contains(setByLambda, s.Name) {
				want = append(want, s.Name)
			}
		}
		var got []string
		for name := range environment(tmpl, function) {
			got = append(got, name)
		}
		sort.Strings(want)
		sort.Strings(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s reads the first and is given the second: %s", function, d)
		}
	}
}

func TestNoSecretInAnyEnvironment(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	for _, s := range config.Settings() {
		for _, function := range s.Functions {
			if v := environment(tmpl, function)[s.Name]; s.Secret && v != "" {
				t.Errorf("%s of %s is %v", s.Name, function, v)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "{{resolve:") {
		t.Error("a resolved secret would stand in clear where it is resolved to")
	}
}

// A parameter that a setting is taken from allows what the setting allows and has
// its default.
func TestParametersAreTheSettings(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	differ := map[string]string{
		// Files in a function's package are no good as a default for everybody.
		"ContractUri": "s3:// only: a path would have to be in the package",
		"Stage":       "",
	}
	for _, s := range config.Settings() {
		for _, function := range s.Functions {
			name := ref(environment(tmpl, function)[s.Name])
			p, ok := at(tmpl.section("Parameters"), name).(map[string]any)
			if !ok {
				continue
			}
			if got := fmt.Sprint(orEmpty(p["Default"])); p["Default"] != nil && got != s.Default {
				t.Errorf("%s is %q by default, %s is %q", name, got, s.Name, s.Default)
			}
			low, high, isRange := strings.Cut(s.Allowed, " to ")
			switch {
			case p["MinValue"] != nil && isRange:
				if fmt.Sprint(p["MinValue"]) != low || fmt.Sprint(p["MaxValue"]) != high {
					t.Errorf("%s allows %v to %v, %s %s", name, p["MinValue"], p["MaxValue"], s.Name, s.Allowed)
				}
			case p["AllowedValues"] != nil && !isRange && differ[name] == "":
				want := strings.Split(s.Allowed, ", ")
				got := texts(p["AllowedValues"])
				sort.Strings(want)
				sort.Strings(got)
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("%s and %s: %s", name, s.Name, d)
				}
			}
		}
	}
}

func orEmpty(v any) any {
	if v == nil {
		return ""
	}
	return v
}

// resolved is a function's environment as a deployment with default parameters has it.
func resolved(t *testing.T, tmpl template, function string) map[string]string {
	t.Helper()
	given := map[string]string{"DatabaseHost": "db.example", "InboxBucket": "inbox-bucket", "DeadLetterBucket": "archive-bucket"}
	env := map[string]string{"AWS_REGION": "eu-west-1"}
	for name, v := range environment(tmpl, function) {
		switch v := v.(type) {
		case string:
			env[name] = v
		case map[string]any:
			target := ref(v)
			if list, ok := v["Fn::If"].([]any); ok {
				target = ref(list[2]) // no parameter is set, so conditions are false
			}
			value, ok := given[target]
			if !ok {
				value = fmt.Sprint(orEmpty(at(tmpl.section("Parameters"), target, "Default")))
			}
			env[name] = value
		default:
			t.Fatalf("%s of %s is a %T", name, function, v)
		}
	}
	return env
}

func TestADeploymentWithDefaultsIsAValidConfiguration(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	for function, load := range map[string]func(map[string]string) error{
		"capture": func(m map[string]string) error { _, err := config.LoadFrom[config.Capture](m); return err },
		"replay":  func(m map[string]string) error { _, err := config.LoadFrom[config.Replay](m); return err },
		"metrics": func(m map[string]string) error { _, err := config.LoadFrom[config.Metrics](m); return err },
		"redrive": func(m map[string]string) error { _, err := config.LoadFrom[config.Redrive](m); return err },
		"migrate": func(m map[string]string) error { _, err := config.LoadFrom[config.Migrate](m); return err },
	} {
		if err := load(resolved(t, tmpl, function)); err != nil {
			t.Errorf("%s: %v", function, err)
		}
	}
}

// Each function signs in as a role of its own, and may as no other.
func TestDatabaseRoles(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	for _, function := range config.Functions() {
		user := "geodlq_" + function
		if function == "migrate" {
			user = "${MigrationUser}"
		} else if got := environment(tmpl, function)["DATABASE_USER"]; got != user {
			t.Errorf("%s signs in as %v", function, got)
		}
		var may []string
		for _, s := range statements(tmpl.properties(strings.TrimSuffix(logicalID(function), "Function") + "Role")) {
			if slices.Contains(texts(s["Action"]), "rds-db:connect") {
				resource, _ := at(s["Resource"], "Fn::Sub").(string)
				may = append(may, resource)
			}
		}
		want := []string{"arn:${AWS::Partition}:rds-db:${AWS::Region}:${AWS::AccountId}:dbuser:${DatabaseResourceId}/" + user}
		if d := cmp.Diff(want, may); d != "" {
			t.Errorf("%s: %s", function, d)
		}
	}
}

func TestParametersExplainThemselves(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"template.yaml", "infra/database.yaml"} {
		tmpl := load(t, name)
		used := map[string]bool{}
		for _, section := range []string{"Globals", "Resources", "Conditions", "Outputs"} {
			walk(tmpl[section], func(_ []string, v any) {
				used[ref(v)] = true
				if sub := subText(at(v, "Fn::Sub")); sub != "" {
					for _, m := range regexp.MustCompile(`\$\{([A-Za-z0-9]+)\}`).FindAllStringSubmatch(sub, -1) {
						used[m[1]] = true
					}
				}
			})
		}
		grouped := map[string]int{}
		groups, _ := at(tmpl.section("Metadata"), "AWS::CloudFormation::Interface", "ParameterGroups").([]any)
		for _, g := range groups {
			for _, p := range texts(at(g, "Parameters")) {
				grouped[p]++
			}
		}
		for id, v := range tmpl.section("Parameters") {
			p := v.(map[string]any)
			if !used[id] {
				t.Errorf("%s: parameter %s is not used", name, id)
			}
			if grouped[id] != 1 {
				t.Errorf("%s: parameter %s stands in %d groups", name, id, grouped[id])
			}
			delete(grouped, id)
			if s, _ := p["Description"].(string); len(s) < 10 || !strings.HasSuffix(s, ".") {
				t.Errorf("%s: parameter %s does not say what it is", name, id)
			}
			def := fmt.Sprint(orEmpty(p["Default"]))
			switch pattern, _ := p["AllowedPattern"].(string); {
			case pattern != "":
				if p["ConstraintDescription"] == nil {
					t.Errorf("%s: parameter %s does not say in words what its pattern wants", name, id)
				}
				if p["Default"] != nil && !regexp.MustCompile(pattern).MatchString(def) {
					t.Errorf("%s: the default of %s does not match its pattern", name, id)
				}
			case p["AllowedValues"] != nil:
				found := false
				for _, allowed := range p["AllowedValues"].([]any) {
					found = found || fmt.Sprint(allowed) == def
				}
				if p["Default"] != nil && !found {
					t.Errorf("%s: the default of %s is none of its values", name, id)
				}
			case p["Type"] == "Number":
				if p["MinValue"] == nil {
					t.Errorf("%s: parameter %s has no least value", name, id)
				}
			case p["Type"] == "String":
				t.Errorf("%s: parameter %s allows any text", name, id)
			}
		}
		for id := range grouped {
			t.Errorf("%s: group member %s is no parameter", name, id)
		}
	}
}

func subText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		if len(v) > 0 {
			s, _ := v[0].(string)
			return s
		}
	}
	return ""
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	text, err := os.ReadFile(filepath.Join(root, "infra", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(text), subText(at(tmpl.properties("Dashboard"), "DashboardBody", "Fn::Sub"))); d != "" {
		t.Errorf("infra/dashboard.json and the body in template.yaml differ: %s", d)
	}
	var body struct {
		Widgets []struct {
			X, Y, Width, Height int
			Properties          struct{ Title string }
		}
	}
	filled := regexp.MustCompile(`\$\{[A-Za-z.:]+\}`).ReplaceAllString(string(text), "300")
	if err := json.Unmarshal([]byte(filled), &body); err != nil {
		t.Fatal(err)
	}
	cells := map[[2]int]string{}
	for _, w := range body.Widgets {
		if w.X+w.Width > 24 {
			t.Errorf("%q is wider than the board", w.Properties.Title)
		}
		for x := w.X; x < w.X+w.Width; x++ {
			for y := w.Y; y < w.Y+w.Height; y++ {
				if other, ok := cells[[2]int{x, y}]; ok {
					t.Fatalf("%q lies over %q", w.Properties.Title, other)
				}
				cells[[2]int{x, y}] = w.Properties.Title
			}
		}
	}
}

// published lists the metrics that the metrics function publishes: its constants
// metric… and the value of its dimension Service.
func published(t *testing.T) (metrics map[string]bool, service string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "functions", "metrics", "data.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	metrics = map[string]bool{}
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			value := spec.(*ast.ValueSpec)
			for i, name := range value.Names {
				if i >= len(value.Values) {
					continue
				}
				literal, ok := value.Values[i].(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					continue
				}
				text, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(name.Name, "metric") {
					metrics[text] = true
				}
				if name.Name == "service" {
					service = text
				}
			}
		}
	}
	if len(metrics) == 0 || service == "" {
		t.Fatal("functions/metrics/data.go names no metrics or no service")
	}
	return metrics, service
}

// An alarm on a metric that nobody publishes never rings.
func TestAlarmsAndDashboardNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	metrics, service := published(t)
	unseen := map[string]bool{}
	for name := range metrics {
		unseen[name] = true
	}
	for _, id := range tmpl.resources("AWS::CloudWatch::Alarm") {
		p := tmpl.properties(id)
		if ref(p["Namespace"]) != "MetricsNamespace" {
			continue
		}
		if name := p["MetricName"].(string); !metrics[name] {
			t.Errorf("%s is on %s, which is not published", id, name)
		}
		want := []any{map[string]any{"Name": "Service", "Value": service}, map[string]any{"Name": "Stage", "Value": map[string]any{"Ref": "Stage"}}}
		if d := cmp.Diff(want, p["Dimensions"]); d != "" {
			t.Errorf("%s: %s", id, d)
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "infra", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	inNamespace := regexp.MustCompile(`\["\$\{MetricsNamespace\}", "([A-Za-z0-9]+)", "Service", "([a-z]+)", "Stage", "\$\{Stage\}"|\["\.", "([A-Za-z0-9]+)"|MetricName=\\"([A-Za-z0-9]+)\\"`)
	for _, m := range inNamespace.FindAllStringSubmatch(string(text), -1) {
		name := m[1] + m[3] + m[4]
		if !metrics[name] {
			t.Errorf("the dashboard shows %s, which is not published", name)
		}
		if m[1] != "" && m[2] != service {
			t.Errorf("the dashboard asks for the service %s", m[2])
		}
		delete(unseen, name)
	}
	for name := range unseen {
		t.Errorf("%s is published and not on the dashboard", name)
	}
}

// What the second template makes is what the first one asks for.
func TestTheDatabaseTemplateFitsTheTemplate(t *testing.T) {
	t.Parallel()
	tmpl, database := load(t, "template.yaml"), load(t, "infra/database.yaml")
	for id := range database.section("Outputs") {
		if at(tmpl.section("Parameters"), id) == nil {
			t.Errorf("output %s is no parameter of template.yaml", id)
		}
	}
	for id, p := range tmpl.section("Parameters") {
		if at(p, "Default") == nil && at(database.section("Outputs"), id) == nil {
			t.Errorf("parameter %s has no default and no output of infra/database.yaml", id)
		}
	}
	db := database.properties("Database")
	for key, want := range map[string]any{
		"PubliclyAccessible": false, "StorageEncrypted": true, "EnableIAMDatabaseAuthentication": true, "ManageMasterUserPassword": true,
	} {
		if db[key] != want {
			t.Errorf("Database.%s is %v", key, db[key])
		}
	}
	if at(database.section("Resources"), "Database", "DeletionPolicy") != "Snapshot" {
		t.Error("the database would go without a snapshot")
	}
	if at(database.properties("DatabaseParameters"), "Parameters", "rds.force_ssl") != "1" {
		t.Error("the database takes connections without TLS")
	}
	for _, id := range database.resources("AWS::EC2::SecurityGroup") {
		rules, _ := database.properties(id)["SecurityGroupIngress"].([]any)
		for _, r := range rules {
			if at(r, "CidrIp") != nil || ref(at(r, "SourceSecurityGroupId")) != "FunctionSecurityGroup" {
				t.Errorf("%s lets in %v", id, r)
			}
		}
	}
	for _, kind := range []string{"AWS::EC2::InternetGateway", "AWS::EC2::NatGateway"} {
		if ids := database.resources(kind); len(ids) > 0 {
			t.Errorf("a way to the internet: %v", ids)
		}
	}
	endpoints := map[string]bool{}
	for _, id := range database.resources("AWS::EC2::VPCEndpoint") {
		service, _ := at(database.properties(id)["ServiceName"], "Fn::Sub").(string)
		endpoints[service[strings.LastIndex(service, ".")+1:]] = true
	}
	if d := cmp.Diff(map[string]bool{"s3": true, "monitoring": true, "secretsmanager": true}, endpoints); d != "" {
		t.Error(d)
	}
}

func TestBucketsKeepWhatTheyAreGiven(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	for bucket, policy := range map[string]string{"InboxBucket": "InboxBucketPolicy", "DeadLetterBucket": "DeadLetterBucketPolicy"} {
		for _, key := range []string{"DeletionPolicy", "UpdateReplacePolicy"} {
			if at(tmpl.section("Resources"), bucket, key) != "Retain" {
				t.Errorf("%s.%s is not Retain", bucket, key)
			}
		}
		p := tmpl.properties(bucket)
		if at(p, "VersioningConfiguration", "Status") != "Enabled" {
			t.Errorf("%s keeps no versions", bucket)
		}
		blocked := at(p, "PublicAccessBlockConfiguration").(map[string]any)
		for _, key := range []string{"BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"} {
			if blocked[key] != true {
				t.Errorf("%s: %s is %v", bucket, key, blocked[key])
			}
		}
		encryption := at(p, "BucketEncryption", "ServerSideEncryptionConfiguration").([]any)
		if at(encryption[0], "ServerSideEncryptionByDefault", "SSEAlgorithm") != "aws:kms" {
			t.Errorf("%s is encrypted by %v", bucket, encryption)
		}
		aborts := false
		for _, rule := range at(p, "LifecycleConfiguration", "Rules").([]any) {
			aborts = aborts || at(rule, "AbortIncompleteMultipartUpload") != nil
		}
		if !aborts {
			t.Errorf("%s keeps parts of uploads that never end", bucket)
		}
		sids := map[string]map[string]any{}
		for _, s := range statements(tmpl.properties(policy)) {
			sids[s["Sid"].(string)] = s
		}
		tls := sids["TLSOnly"]
		if at(tls, "Effect") != "Deny" || at(tls, "Condition", "Bool", "aws:SecureTransport") != "false" || len(at(tls, "Resource").([]any)) != 2 {
			t.Errorf("%s can be reached without TLS: %v", bucket, tls)
		}
		if bucket != "DeadLetterBucket" {
			continue
		}
		once := sids["WriteOnce"]
		want := map[string]any{"Null": map[string]any{"s3:if-none-match": "true"}, "Bool": map[string]any{"s3:ObjectCreationOperation": "true"}}
		if d := cmp.Diff(want, at(once, "Condition")); d != "" || at(once, "Effect") != "Deny" {
			t.Errorf("history can be replaced: %s", d)
		}
		var prefixes []string
		for _, r := range at(once, "Resource").([]any) {
			prefixes = append(prefixes, at(r, "Fn::Sub").(string))
		}
		if d := cmp.Diff([]string{"${DeadLetterBucket.Arn}/dead-letters/*", "${DeadLetterBucket.Arn}/outcomes/*", "${DeadLetterBucket.Arn}/lineage/*"}, prefixes); d != "" {
			t.Error(d)
		}
	}
	if at(tmpl.properties("InboxBucket"), "NotificationConfiguration", "EventBridgeConfiguration", "EventBridgeEnabled") != true {
		t.Error("the inbox tells nobody what arrives")
	}
	for _, id := range tmpl.resources("AWS::SQS::Queue") {
		if tmpl.properties(id)["SqsManagedSseEnabled"] != true || tmpl.properties(id)["MessageRetentionPeriod"] != 1209600 {
			t.Errorf("%s is not encrypted or does not keep messages for 14 days", id)
		}
	}
	// An event that waits in a dead-letter queue must find its file when it is redriven.
	if days := at(tmpl.section("Parameters"), "InboxExpirationDays", "MinValue").(int); days*86400 <= 1209600 {
		t.Errorf("files may leave the inbox after %d days, before their events", days)
	}
}

func TestSAMConfigBuildsAnew(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "samconfig.toml"))
	if err != nil {
		t.Fatal(err)
	}
	// The cache of "sam build" looks at a function's folder by its hash; with one
	// folder for all it would rebuild each time or, worse, not at all.
	if !regexp.MustCompile(`(?m)^cached = false$`).Match(text) {
		t.Error("samconfig.toml does not switch the build cache off")
	}
	if regexp.MustCompile(`(?m)^s3_bucket|^region|^profile|[0-9]{12}`).Match(text) {
		t.Error("samconfig.toml holds something of one account")
	}
}

func TestNumbersAreNotQuotedInParameters(t *testing.T) {
	t.Parallel()
	for id, p := range load(t, "template.yaml").section("Parameters") {
		if at(p, "Type") != "Number" || at(p, "Default") == nil {
			continue
		}
		if _, err := strconv.Atoi(fmt.Sprint(at(p, "Default"))); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}
