package trigger_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"geodlq/shared/trigger"
)

const sampleKey = "incoming/batch_id=parcels-2026-11-30/parcels+roads failures 0001.ndjson"

// Every file in events/ that capture is invoked with, and what it is about.
func TestParseSampleEvents(t *testing.T) {
	t.Parallel()
	announced := trigger.Object{
		Bucket: "geodlq-inbox", Key: sampleKey, ETag: "9b2cf535f27731c974343645a3985328",
		Size: 18211, Sequencer: "00692BCB8C1A7F3D21",
	}
	const sqsID = "059f36b4-87a3-44ab-83d2-661975830a7d"
	want := map[string]trigger.Event{
		"capture-s3.json":              {Kind: trigger.KindS3, Messages: []trigger.Message{{Objects: []trigger.Object{announced}}}},
		"capture-eventbridge.json":     {Kind: trigger.KindEventBridge, Messages: []trigger.Message{{Objects: []trigger.Object{announced}}}},
		"capture-sqs-s3.json":          {Kind: trigger.KindSQS, Messages: []trigger.Message{{ID: sqsID, Objects: []trigger.Object{announced}}}},
		"capture-sqs-eventbridge.json": {Kind: trigger.KindSQS, Messages: []trigger.Message{{ID: sqsID, Objects: []trigger.Object{announced}}}},
		"capture-sns.json":             {Kind: trigger.KindSNS, Messages: []trigger.Message{{Objects: []trigger.Object{announced}}}},
		"capture-sqs-sns.json":         {Kind: trigger.KindSQS, Messages: []trigger.Message{{ID: sqsID, Objects: []trigger.Object{announced}}}},
		"capture-s3-test-event.json":   {Kind: trigger.KindS3, Messages: []trigger.Message{{Ignored: []string{"s3:TestEvent of bucket geodlq-inbox"}}}},
		"capture-direct.json":          {Kind: trigger.KindDirect, Messages: []trigger.Message{{Objects: []trigger.Object{{Bucket: "geodlq-inbox", Key: sampleKey}}}}},
	}
	files, err := filepath.Glob("../../events/capture-*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(want) {
		t.Errorf("events/ holds %d capture events, the table %d: %v", len(files), len(want), files)
	}
	for name, event := range want {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			payload, err := os.ReadFile(filepath.Join("../../events", name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := trigger.Parse(payload)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(event, got); diff != "" {
				t.Errorf("event (-want +got):\n%s", diff)
			}
		})
	}
}

func s3Record(key string) string {
	return `{"eventSource":"aws:s3","eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"` + key + `"}}}`
}

func TestParseKeys(t *testing.T) {
	t.Parallel()
	eventBridge := func(key string) string {
		return `{"detail-type":"Object Created","source":"aws.s3","detail":{"bucket":{"name":"b"},"object":{"key":"` + key + `"}}}`
	}
	for name, tc := range map[string]struct{ payload, want string }{
		"form-encoded in a notification":      {`{"Records":[` + s3Record("in/a+b/%C3%A9%3D1") + `]}`, "in/a b/é=1"},
		"an encoded plus in a notification":   {`{"Records":[` + s3Record("in/a%2Bb") + `]}`, "in/a+b"},
		"verbatim from EventBridge":           {eventBridge("in/a+b/%41"), "in/a+b/%41"},
		"verbatim from a person":              {`{"bucket":"b","key":"in/a+b/%41"}`, "in/a+b/%41"},
		"form-encoded inside SQS":             {`{"Records":[{"messageId":"1","eventSource":"aws:sqs","body":"{\"Records\":[{\"eventSource\":\"aws:s3\",\"eventName\":\"ObjectCreated:Put\",\"s3\":{\"bucket\":{\"name\":\"b\"},\"object\":{\"key\":\"a+b\"}}}]}"}]}`, "a b"},
		"event names with the s3: of old":     {`{"Records":[` + strings.Replace(s3Record("k"), "Object", "s3:Object", 1) + `]}`, "k"},
		"raw SNS delivery straight to a body": {`{"Records":[{"messageId":"1","eventSource":"aws:sqs","body":"{\"bucket\":\"b\",\"key\":\"a+b\"}"}]}`, "a+b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := trigger.Parse([]byte(tc.payload))
			if err != nil {
				t.Fatal(err)
			}
			if len(e.Messages) != 1 || len(e.Messages[0].Objects) != 1 {
				t.Fatalf("want one object, got %+v", e)
			}
			if o := e.Messages[0].Objects[0]; o.Key != tc.want || o.Bucket != "b" {
				t.Errorf("s3://%s/%s, want key %q of bucket b", o.Bucket, o.Key, tc.want)
			}
		})
	}
}

// One record that cannot be read must not take its neighbours down.
func TestParseBadRecords(t *testing.T) {
	t.Parallel()
	e, err := trigger.Parse([]byte(`{"Records":[` + s3Record("a") + `,` + s3Record("%zz") + `,17,` + s3Record("") + `,` + s3Record("b") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	m := e.Messages[0]
	if len(m.Objects) != 2 || m.Objects[0].Key != "a" || m.Objects[1].Key != "b" {
		t.Errorf("objects %+v, want keys a and b", m.Objects)
	}
	if len(m.Errs) != 3 {
		t.Fatalf("errors %v, want three", m.Errs)
	}
	for i, index := range []int{1, 2, 3} {
		var re *trigger.RecordError
		if !errors.As(m.Errs[i], &re) || re.Index != index {
			t.Errorf("error %d is %v, want one about record %d", i, m.Errs[i], index)
		}
	}

	e, err = trigger.Parse([]byte(`{"Records":[
		{"messageId":"good","eventSource":"aws:sqs","body":"{\"bucket\":\"b\",\"key\":\"a\"}"},
		{"messageId":"no json","eventSource":"aws:sqs","body":"hello"},
		{"messageId":"nested","eventSource":"aws:sqs","body":"{\"Records\":[{\"eventSource\":\"aws:sqs\",\"body\":\"{}\"}]}"},
		{"messageId":"other","eventSource":"aws:sqs","body":"{\"detail-type\":\"Object Deleted\",\"source\":\"aws.s3\",\"detail\":{}}"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct{ Objects, Ignored, Errs int }
	got := map[string]outcome{}
	for _, m := range e.Messages {
		got[m.ID] = outcome{len(m.Objects), len(m.Ignored), len(m.Errs)}
	}
	want := map[string]outcome{"good": {Objects: 1}, "no json": {Errs: 1}, "nested": {Errs: 1}, "other": {Ignored: 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestParseOtherEvents(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]string{
		"no JSON":                    `incoming/a.ndjson`,
		"an array":                   `[]`,
		"an API Gateway request":     `{"resource":"/","httpMethod":"GET","headers":{}}`,
		"Records of another source":  `{"Records":[{"eventSource":"aws:kinesis","kinesis":{}}]}`,
		"Records no array":           `{"Records":{}}`,
		"a key that is no string":    `{"bucket":"b","key":7}`,
		"an empty key":               `{"bucket":"b","key":""}`,
		"a detail that is no object": `{"detail-type":"Object Created","source":"aws.s3","detail":7}`,
		"SNS in SNS":                 `{"Type":"Notification","Message":"{\"Type\":\"Notification\",\"Message\":\"{}\"}"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if e, err := trigger.Parse([]byte(payload)); !errors.Is(err, trigger.ErrUnsupported) {
				t.Errorf("event %+v, error %v; want an error of class ErrUnsupported", e, err)
			}
		})
	}
	for name, payload := range map[string]string{
		"removal":           `{"Records":[{"eventSource":"aws:s3","eventName":"ObjectRemoved:Delete","s3":{"bucket":{"name":"b"},"object":{"key":"k"}}}]}`,
		"EventBridge other": `{"detail-type":"Object Tags Added","source":"aws.s3","detail":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := trigger.Parse([]byte(payload))
			if err != nil {
				t.Fatal(err)
			}
			if m := e.Messages[0]; len(m.Objects) != 0 || len(m.Errs) != 0 || len(m.Ignored) != 1 {
				t.Errorf("message %+v, want one thing ignored", m)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("../../events/capture-*.json")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		e, err := trigger.Parse(payload)
		if err != nil {
			if !errors.Is(err, trigger.ErrUnsupported) {
				t.Errorf("error %v is not of class ErrUnsupported", err)
			}
			return
		}
		for _, m := range e.Messages {
			for _, o := range m.Objects {
				if o.Key == "" || o.Bucket == "" && e.Kind != trigger.KindDirect && e.Kind != trigger.KindSQS && e.Kind != trigger.KindSNS {
					t.Errorf("object %+v without a name", o)
				}
			}
		}
	})
}
