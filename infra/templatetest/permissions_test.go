package templatetest

import (
	"fmt"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"geodlq/shared/config"
)

// statements lists the policy statements anywhere in a resource's properties.
func statements(properties any) []map[string]any {
	var list []map[string]any
	walk(properties, func(_ []string, v any) {
		if m, ok := v.(map[string]any); ok && m["Effect"] != nil && m["Action"] != nil {
			list = append(list, m)
		}
	})
	return list
}

// policies are all statements of a template, by resource.
func policies(t *testing.T, name string) map[string][]map[string]any {
	t.Helper()
	tmpl := load(t, name)
	all := map[string][]map[string]any{}
	for id := range tmpl.section("Resources") {
		if list := statements(tmpl.properties(id)); len(list) > 0 {
			all[id] = list
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no policies", name)
	}
	return all
}

func TestNoPolicyGivesMoreThanItNames(t *testing.T) {
	t.Parallel()
	destructive := regexp.MustCompile(`:(Delete|Remove|Purge|Put(Bucket|Lifecycle)|Bypass)`)
	for _, name := range []string{"template.yaml", "infra/database.yaml"} {
		for id, list := range policies(t, name) {
			for _, s := range list {
				where := fmt.Sprintf("%s: %s, statement %v", name, id, s["Sid"])
				if s["Effect"] != "Allow" {
					continue
				}
				if s["NotAction"] != nil || s["NotResource"] != nil || s["NotPrincipal"] != nil {
					t.Errorf("%s allows everything but something", where)
				}
				for _, action := range texts(s["Action"]) {
					if strings.Contains(action, "*") {
						t.Errorf("%s allows %s", where, action)
					}
					// A queue's message is deleted when it has been taken; nothing else is.
					if destructive.MatchString(action) && action != "sqs:DeleteMessage" {
						t.Errorf("%s allows %s", where, action)
					}
				}
				for _, resource := range texts(s["Resource"]) {
					if resource == "*" && s["Condition"] == nil {
						t.Errorf("%s allows it on every resource, without a condition", where)
					}
				}
				if s["Principal"] == "*" && s["Condition"] == nil && !strings.HasSuffix(id, "Endpoint") {
					t.Errorf("%s allows it to everybody, without a condition", where)
				}
			}
		}
	}
}

// What each function may do in S3, and to the world besides, in full.
func TestPermissionsOfTheFunctions(t *testing.T) {
	t.Parallel()
	all := policies(t, "template.yaml")
	want := map[string][]string{
		"capture": {
			"s3:GetObject ${InboxBucket.Arn}/incoming/*",
			"s3:GetObjectVersion ${InboxBucket.Arn}/incoming/*",
			"s3:PutObject ${DeadLetterBucket.Arn}/dead-letters/*",
			"s3:GetObject ${DeadLetterBucket.Arn}/dead-letters/*",
			"s3:ListBucket InboxBucket",
			"s3:ListBucket DeadLetterBucket",
			"sqs:ReceiveMessage CaptureQueue",
			"sqs:DeleteMessage CaptureQueue",
			"sqs:GetQueueAttributes CaptureQueue",
		},
		"replay": {
			"s3:PutObject ${DeadLetterBucket.Arn}/outcomes/*",
			"s3:GetObject arn:${AWS::Partition}:s3:::${BucketAndKey}",
			"s3:GetObjectVersion arn:${AWS::Partition}:s3:::${BucketAndKey}",
		},
		"metrics": {
			"s3:PutObject ${DeadLetterBucket.Arn}/lineage/*",
			"cloudwatch:PutMetricData * if StringEquals cloudwatch:namespace MetricsNamespace",
		},
		"redrive": {
			"s3:GetObject ${DeadLetterBucket.Arn}/dead-letters/*",
			"s3:GetObject ${DeadLetterBucket.Arn}/outcomes/*",
			"s3:ListBucket DeadLetterBucket if StringLike s3:prefix [dead-letters/* outcomes/*]",
			"s3:PutObject ${DeadLetterBucket.Arn}/exports/*",
			"s3:PutObject ${DeadLetterBucket.Arn}/outcomes/*",
			"s3:GetObject arn:${AWS::Partition}:s3:::${BucketAndKey}",
			"s3:GetObjectVersion arn:${AWS::Partition}:s3:::${BucketAndKey}",
		},
		"migrate": {"secretsmanager:GetSecretValue MigrationSecretArn"},
	}
	for _, function := range config.Functions() {
		var got []string
		for _, s := range all[strings.TrimSuffix(logicalID(function), "Function")+"Role"] {
			condition := ""
			walk(s["Condition"], func(path []string, v any) {
				if len(path) == 2 {
					if name := ref(v); name != "" {
						v = name
					}
					condition = fmt.Sprintf(" if %s %v", strings.Join(path, " "), v)
				}
			})
			for _, action := range texts(s["Action"]) {
				if action == "sts:AssumeRole" || action == "rds-db:connect" || s["Sid"] == "FailureDestination" {
					continue // the roles of the database have a test of their own
				}
				resources, ok := s["Resource"].([]any)
				if !ok {
					resources = []any{s["Resource"]}
				}
				for _, r := range resources {
					name, _ := r.(string)
					for _, s := range []string{subText(at(r, "Fn::Sub")), attribute(r, "Arn"), ref(r)} {
						if s != "" {
							name = s
						}
					}
					got = append(got, action+" "+name+condition)
				}
			}
		}
		sort.Strings(got)
		sort.Strings(want[function])
		if d := cmp.Diff(want[function], got); d != "" {
			t.Errorf("%s: %s", function, d)
		}
	}
}

// Roles are assumed by the service that needs them, and functions' code may not use
// what Lambda needs to connect them to the network.
func TestRoles(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	for _, id := range tmpl.resources("AWS::IAM::Role") {
		want := "lambda.amazonaws.com"
		if id == "SchedulerRole" {
			want = "scheduler.amazonaws.com"
		}
		trust := statements(at(tmpl.properties(id), "AssumeRolePolicyDocument"))
		if len(trust) != 1 || at(trust[0], "Principal", "Service") != want {
			t.Errorf("%s can be assumed by %v", id, trust)
		}
		if id == "SchedulerRole" {
			continue
		}
		attached := at(tmpl.properties(id), "ManagedPolicyArns").([]any)
		if len(attached) != 2 || ref(attached[1]) != "FunctionPolicy" || !strings.HasSuffix(at(attached[0], "Fn::Sub").(string), "service-role/AWSLambdaENIManagementAccess") {
			t.Errorf("%s has the policies %v", id, attached)
		}
	}
	denied := 0
	for _, s := range statements(tmpl.properties("FunctionPolicy")) {
		if s["Effect"] == "Deny" && at(s, "Condition", "ArnLike", "lambda:SourceFunctionArn") != nil {
			for _, a := range texts(s["Action"]) {
				if strings.HasPrefix(a, "ec2:") {
					denied++
				}
			}
		}
	}
	if denied < 4 {
		t.Error("a function's own code may make network interfaces")
	}
}

// Rules and permissions speak of the prefix that capture is told to read.
func TestTheInboxPrefixIsOne(t *testing.T) {
	t.Parallel()
	tmpl := load(t, "template.yaml")
	prefix := environment(tmpl, "capture")["INBOX_PREFIX"]
	rule := at(tmpl.properties("InboxRule"), "EventPattern", "detail", "object", "key").([]any)
	if got := at(rule[0], "prefix"); got != prefix {
		t.Errorf("events come from %v, capture reads %v", got, prefix)
	}
}
