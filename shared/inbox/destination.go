package inbox

import (
	"bytes"
	"encoding/base64"
	"time"

	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
	"geodlq/shared/geojson"
	"geodlq/shared/jsonscan"
)

// envelope is what a failure record of Lambda says about the features it holds.
type envelope struct {
	errorType, errorMessage []byte
	attempts                int
	occurred                time.Time
}

func (e *envelope) describe(d *decoder, r *archive.Row) {
	if len(e.errorType) > 0 {
		r.ErrorType = *d.word(e.errorType)
	}
	if len(e.errorMessage) > 0 {
		r.ErrorMessage = string(e.errorMessage)
	}
	r.Attempts = e.attempts
	if !e.occurred.IsZero() {
		r.FirstSeen = e.occurred
	}
}

// destination decodes a record that Lambda wrote to a failure destination. Of an
// asynchronous invocation it holds the event as requestPayload; of an event source
// mapping, where the destination is S3, as text in payload (AWS Lambda Developer
// Guide, "Capturing records of Lambda asynchronous invocations" and "Retain
// discarded records"). Its features come each with the error of the whole.
func (d *decoder) destination(u *unit, f *fields, from *envelope, rows []archive.Row) []archive.Row {
	var context struct{ condition, count, functionError, typ, message []byte }
	each(f.requestContext, func(name string, value []byte) {
		switch name {
		case "condition":
			context.condition = textOf(value)
		case "approximateInvokeCount":
			context.count = value
		}
	})
	each(f.responseContext, func(name string, value []byte) {
		if name == "functionError" {
			context.functionError = textOf(value)
		}
	})
	each(f.responsePayload, func(name string, value []byte) {
		switch name {
		case "errorType":
			context.typ = textOf(value)
		case "errorMessage":
			context.message = textOf(value)
		}
	})
	e := &envelope{errorType: context.typ, errorMessage: context.message}
	for _, other := range [][]byte{context.functionError, context.condition} {
		if len(e.errorType) == 0 {
			e.errorType = other
		}
	}
	if len(e.errorMessage) == 0 {
		e.errorMessage = context.condition
	}
	e.attempts, _ = count(context.count)
	e.occurred, _ = instant(f.occurred)

	before := len(rows)
	for _, payload := range [][]byte{f.requestPayload, f.payload} {
		if present(payload) {
			rows = d.event(u, payload, e, maxWrapping, rows)
		}
	}
	if len(rows) == before {
		r := d.blank(u)
		e.describe(d, &r)
		rows = append(rows, d.malformed(r, u, u.data, deadletter.Faultf(deadletter.ReasonNotAFeature, geojson.RuleFeature,
			"the failure record of Lambda holds no event: of an event source mapping it does so only where its destination is S3")))
	}
	return rows
}

// maxWrapping bounds how many events may be wrapped around a feature: SNS in SQS in a
// destination record are two.
const maxWrapping = 4

// event appends the features that the event of a failed invocation holds: one by
// itself, several in a collection or an array, or what SQS, SNS, Kinesis, Kafka or
// Amazon MQ wrapped. An event without a feature is one malformed row.
func (d *decoder) event(u *unit, raw []byte, from *envelope, wrapping int, rows []archive.Row) []archive.Row {
	switch kind := jsonscan.KindOf(raw); {
	case kind == jsonscan.KindString:
		text, err := jsonscan.Unquote(raw)
		if err != nil {
			return append(rows, d.malformed(d.described(u, from), u, raw, notJSONFault(raw, err)))
		}
		return d.text(u, text, from, wrapping-1, rows)
	case kind == jsonscan.KindObject && wrapping > 0:
		texts := wrapped(raw)
		for _, text := range texts {
			rows = d.text(u, text, from, wrapping-1, rows)
		}
		if len(texts) > 0 {
			return rows
		}
	}
	part := *u
	part.form, part.data = formValue, raw
	return d.value(&part, from, rows)
}

// text appends the features in a text that an event carried: one JSON value, or
// several as an inbox object has them.
func (d *decoder) text(u *unit, text []byte, from *envelope, wrapping int, rows []archive.Row) []archive.Row {
	if wrapping > 0 {
		if value := text[leading(text):]; jsonscan.Valid(value, maxDepth) == nil {
			return d.event(u, bytes.TrimRight(value, whitespace), from, wrapping, rows)
		}
	}
	f := inMemory(text, u.offset, d.limits)
	f.frame() // in memory there is nothing to fail
	if len(f.units) == 0 {
		return append(rows, d.malformed(d.described(u, from), u, text, deadletter.Faultf(deadletter.ReasonNotAFeature, geojson.RuleFeature, "the event carries an empty text")))
	}
	return d.units(f.units, from, u, rows)
}

func (d *decoder) described(u *unit, from *envelope) archive.Row {
	r := d.blank(u)
	from.describe(d, &r)
	return r
}

// wrapped returns the texts that the records of an event carry: the body of SQS, the
// message of SNS, the data of Kinesis, the values of Kafka, the data of Amazon MQ. It is
// nil for any other event.
func wrapped(event []byte) (texts [][]byte) {
	each(event, func(name string, value []byte) {
		switch name {
		case "Records", "messages":
			elements(value, func(record []byte) { texts = appendCarried(texts, record) })
		case "records":
			each(value, func(_ string, partition []byte) {
				elements(partition, func(record []byte) { texts = appendCarried(texts, record) })
			})
		}
	})
	return texts
}

// appendCarried appends what one record of an event carries.
func appendCarried(texts [][]byte, record []byte) [][]byte {
	each(record, func(name string, value []byte) {
		switch name {
		case "body":
			texts = append(texts, textOf(value))
		case "value", "data":
			texts = append(texts, decodeBase64(textOf(value)))
		case "Sns":
			each(value, func(name string, value []byte) {
				if name == "Message" {
					texts = append(texts, textOf(value))
				}
			})
		case "kinesis":
			each(value, func(name string, value []byte) {
				if name == "data" {
					texts = append(texts, decodeBase64(textOf(value)))
				}
			})
		}
	})
	return texts
}

// decodeBase64 returns what text encodes, and text itself where it is no Base64.
func decodeBase64(text []byte) []byte {
	plain := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(plain, text)
	if err != nil {
		return text
	}
	return plain[:n]
}

// each calls member for the members of a valid JSON object, and for none of anything else.
func each(raw []byte, member func(name string, value []byte)) {
	if jsonscan.KindOf(raw) != jsonscan.KindObject {
		return
	}
	s := jsonscan.New(raw, maxDepth)
	for name := range s.Members() {
		if value := s.Value(); value != nil {
			member(string(name), value)
		}
	}
}

// elements calls element for the elements of a valid JSON array.
func elements(raw []byte, element func([]byte)) {
	if jsonscan.KindOf(raw) != jsonscan.KindArray {
		return
	}
	s := jsonscan.New(raw, maxDepth)
	for range s.Elements() {
		if value := s.Value(); value != nil {
			element(value)
		}
	}
}
