// Package trigger tells which S3 objects an invocation is about, whatever way the
// news took: S3 notification, EventBridge "Object Created", either of them in an
// SQS batch, in SNS, or in SNS inside SQS, and a person's {"bucket":…,"key":…}.
//
// An S3 notification writes the key as a form writes it ('+' for a space, %XX);
// EventBridge and a person write it verbatim. Records are read one by one, so that
// one that cannot be read fails alone.
package trigger

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Kind says what form an event has.
type Kind string

// The forms of an event. Whatever comes inside SQS or SNS has the kind of its wrapping.
const (
	KindS3          Kind = "s3"
	KindEventBridge Kind = "eventbridge"
	KindSQS         Kind = "sqs"
	KindSNS         Kind = "sns"
	KindDirect      Kind = "direct"
)

// Object is one S3 object that an event announces.
type Object struct {
	Bucket    string // empty in a direct event that names none
	Key       string // decoded
	VersionID string // empty where the event has none, as in a bucket without versions
	ETag      string // without quotes; empty where the event has none
	Size      int64  // bytes; 0 where the event has none
	Sequencer string // hexadecimal; orders the events of one key, see S3's documentation
}

// Message is the part of an event that succeeds or fails as one: an SQS message,
// or the whole event where it did not come through SQS.
type Message struct {
	ID      string // SQS message id; empty outside SQS
	Objects []Object
	// Ignored says, one line each, what was not about a new object: s3:TestEvent
	// and events of another type.
	Ignored []string
	// Errs are the records that could not be read. The message has failed then,
	// whatever becomes of its objects.
	Errs []error
}

// Event is a parsed invocation payload.
type Event struct {
	Kind     Kind
	Messages []Message
}

// ErrUnsupported is the class of an event in none of the known forms.
var ErrUnsupported = errors.New("not an event about S3 objects")

// RecordError says which record of an event could not be read.
type RecordError struct {
	Index int // in the Records of the event or of the message around it
	Err   error
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("record %d of the event: %v", e.Index, e.Err)
}

func (e *RecordError) Unwrap() error { return e.Err }

// Parse reads an invocation payload. The error is of class [ErrUnsupported] where
// the payload as a whole is none of the known forms; what is wrong with a single
// message or record stands in [Message.Errs].
func Parse(payload []byte) (Event, error) {
	env, err := parseEnvelope(payload)
	if err != nil {
		return Event{}, err
	}
	switch source := env.recordSource(); {
	case source == sourceSQS:
		e := Event{Kind: KindSQS}
		for i, raw := range env.records {
			e.Messages = append(e.Messages, sqsMessage(i, raw))
		}
		return e, nil
	case source == sourceSNS:
		e := Event{Kind: KindSNS}
		for i, raw := range env.records {
			e.Messages = append(e.Messages, snsMessage(i, raw))
		}
		return e, nil
	default:
		kind, m, err := env.message()
		if err != nil {
			return Event{}, err
		}
		return Event{Kind: kind, Messages: []Message{m}}, nil
	}
}

const (
	sourceS3  = "aws:s3"
	sourceSQS = "aws:sqs"
	sourceSNS = "aws:sns"
)

// envelope is the outermost object of a payload. Members are looked up by their
// exact names: S3's test event has "Event", an EventBridge event has "source", and
// encoding/json would take one for the other.
type envelope struct {
	members map[string]json.RawMessage
	records []json.RawMessage
}

func parseEnvelope(payload []byte) (envelope, error) {
	var env envelope
	if err := json.Unmarshal(payload, &env.members); err != nil {
		return env, fmt.Errorf("%w: want a JSON object: %v", ErrUnsupported, err)
	}
	if raw, ok := env.members["Records"]; ok {
		if err := json.Unmarshal(raw, &env.records); err != nil {
			return env, fmt.Errorf("%w: Records is no array: %v", ErrUnsupported, err)
		}
	}
	return env, nil
}

// text returns a string member, and "" where it is absent or no string.
func (e envelope) text(name string) string {
	var s string
	if json.Unmarshal(e.members[name], &s) != nil {
		return ""
	}
	return s
}

// recordSource returns the eventSource of the first record that has one. SNS
// writes the name with a capital letter.
func (e envelope) recordSource() string {
	for _, raw := range e.records {
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil {
			continue
		}
		for _, name := range []string{"eventSource", "EventSource"} {
			var s string
			if json.Unmarshal(members[name], &s) == nil && s != "" {
				return s
			}
		}
	}
	return ""
}

// message reads what one message may hold: anything but another SQS or SNS batch.
func (e envelope) message() (Kind, Message, error) {
	switch {
	case e.text("Event") == "s3:TestEvent":
		return KindS3, Message{Ignored: []string{"s3:TestEvent of bucket " + e.text("Bucket")}}, nil
	case e.members["Records"] != nil && (len(e.records) == 0 || e.recordSource() == sourceS3):
		var m Message
		for i, raw := range e.records {
			m.s3Record(i, raw)
		}
		return KindS3, m, nil
	case e.members["detail-type"] != nil:
		var m Message
		if err := m.eventBridge(e); err != nil {
			return "", m, err
		}
		return KindEventBridge, m, nil
	case e.members["key"] != nil:
		var m Message
		if err := m.direct(e); err != nil {
			return "", m, err
		}
		return KindDirect, m, nil
	case e.text("Type") == "Notification" && e.members["Message"] != nil:
		inner, err := parseEnvelope([]byte(e.text("Message")))
		if err != nil {
			return "", Message{}, fmt.Errorf("SNS message %s: %w", e.text("MessageId"), err)
		}
		if inner.text("Type") == "Notification" {
			return "", Message{}, fmt.Errorf("SNS message %s: %w: it holds another SNS message", e.text("MessageId"), ErrUnsupported)
		}
		return inner.message()
	default:
		return "", Message{}, fmt.Errorf("%w: it has no Records of %s, no detail-type, no bucket and key", ErrUnsupported, sourceS3)
	}
}

// sqsMessage reads one message of an SQS batch.
func sqsMessage(index int, raw json.RawMessage) Message {
	var rec struct {
		MessageID string `json:"messageId"`
		Body      string `json:"body"`
	}
	if err := json.Unmarshal(raw, &rec); err != nil {
		return Message{Errs: []error{&RecordError{index, fmt.Errorf("read SQS message: %w", err)}}}
	}
	return wrapped(rec.MessageID, index, rec.Body)
}

// snsMessage reads one record that SNS sent straight to the function.
func snsMessage(index int, raw json.RawMessage) Message {
	var rec struct {
		SNS struct {
			Message string `json:"Message"`
		} `json:"Sns"`
	}
	if err := json.Unmarshal(raw, &rec); err != nil {
		return Message{Errs: []error{&RecordError{index, fmt.Errorf("read SNS record: %w", err)}}}
	}
	return wrapped("", index, rec.SNS.Message)
}

func wrapped(id string, index int, body string) Message {
	env, err := parseEnvelope([]byte(body))
	var m Message
	if err == nil {
		_, m, err = env.message()
	}
	if err != nil {
		return Message{ID: id, Errs: []error{&RecordError{index, err}}}
	}
	m.ID = id
	return m
}

// s3Record adds one record of an S3 notification (event structure 2.x).
func (m *Message) s3Record(index int, raw json.RawMessage) {
	var rec struct {
		EventName string `json:"eventName"`
		S3        struct {
			Bucket struct {
				Name string `json:"name"`
			} `json:"bucket"`
			Object struct {
				Key       string `json:"key"`
				Size      int64  `json:"size"`
				ETag      string `json:"eTag"`
				VersionID string `json:"versionId"`
				Sequencer string `json:"sequencer"`
			} `json:"object"`
		} `json:"s3"`
	}
	if err := json.Unmarshal(raw, &rec); err != nil {
		m.Errs = append(m.Errs, &RecordError{index, fmt.Errorf("read S3 record: %w", err)})
		return
	}
	// Some senders put "s3:" before the name of the event.
	if name := strings.TrimPrefix(rec.EventName, "s3:"); !strings.HasPrefix(name, "ObjectCreated:") {
		m.Ignored = append(m.Ignored, fmt.Sprintf("%s of s3://%s/%s", rec.EventName, rec.S3.Bucket.Name, rec.S3.Object.Key))
		return
	}
	o := rec.S3.Object
	key, err := url.QueryUnescape(o.Key)
	if err != nil {
		m.Errs = append(m.Errs, &RecordError{index, fmt.Errorf("decode key %q of bucket %s, which must be form-encoded: %w", o.Key, rec.S3.Bucket.Name, err)})
		return
	}
	m.add(index, Object{Bucket: rec.S3.Bucket.Name, Key: key, VersionID: o.VersionID, ETag: strings.Trim(o.ETag, `"`), Size: o.Size, Sequencer: o.Sequencer})
}

// eventBridge adds the object of an "Object Created" event.
func (m *Message) eventBridge(e envelope) error {
	var detail struct {
		Bucket struct {
			Name string `json:"name"`
		} `json:"bucket"`
		Object struct {
			Key       string `json:"key"`
			Size      int64  `json:"size"`
			ETag      string `json:"etag"`
			VersionID string `json:"version-id"`
			Sequencer string `json:"sequencer"`
		} `json:"object"`
	}
	if kind, source := e.text("detail-type"), e.text("source"); source != "aws.s3" || kind != "Object Created" {
		m.Ignored = append(m.Ignored, fmt.Sprintf("%q of %s", kind, source))
		return nil
	}
	if err := json.Unmarshal(e.members["detail"], &detail); err != nil {
		return fmt.Errorf("%w: read detail of the EventBridge event: %v", ErrUnsupported, err)
	}
	o := detail.Object
	m.add(0, Object{Bucket: detail.Bucket.Name, Key: o.Key, VersionID: o.VersionID, ETag: strings.Trim(o.ETag, `"`), Size: o.Size, Sequencer: o.Sequencer})
	return nil
}

// direct adds the object a person named: key, and where they like bucket and version_id.
func (m *Message) direct(e envelope) error {
	o := Object{}
	for name, field := range map[string]*string{"bucket": &o.Bucket, "key": &o.Key, "version_id": &o.VersionID} {
		raw, ok := e.members[name]
		if !ok {
			continue
		}
		if err := json.Unmarshal(raw, field); err != nil {
			return fmt.Errorf("%w: %s must be a string: %v", ErrUnsupported, name, err)
		}
	}
	if o.Key == "" {
		return fmt.Errorf("%w: key is empty; want {\"bucket\": …, \"key\": …}", ErrUnsupported)
	}
	m.Objects = append(m.Objects, o)
	return nil
}

func (m *Message) add(index int, o Object) {
	if o.Bucket == "" || o.Key == "" {
		m.Errs = append(m.Errs, &RecordError{index, fmt.Errorf("%w: bucket %q and key %q must both be given", ErrUnsupported, o.Bucket, o.Key)})
		return
	}
	m.Objects = append(m.Objects, o)
}
