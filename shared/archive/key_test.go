package archive_test

import (
	"strings"
	"testing"
	"time"

	"geodlq/shared/archive"
)

func TestObjectKey(t *testing.T) {
	t.Parallel()
	base := archive.Part{Bucket: "geodlq-inbox", Key: "incoming/a.ndjson", Version: "3", BatchID: "parcels/1",
		Day: time.Date(2026, 11, 30, 23, 59, 0, 0, time.FixedZone("", -3600)), First: 100000}
	const want = "dead-letters/batch_id=parcels%2F1/date=2026-12-01/"
	key := base.ObjectKey()
	if !strings.HasPrefix(key, want) || !strings.HasSuffix(key, ".parquet") || len(key) != len(want)+32+len(".parquet") {
		t.Errorf("key %q, want %s<32 digits>.parquet", key, want)
	}
	if !strings.HasPrefix(key, archive.BatchPrefix(base.BatchID)) || !strings.HasPrefix(key, archive.Prefix) {
		t.Errorf("key %q is not below its batch's prefix %q", key, archive.BatchPrefix(base.BatchID))
	}
	keys := map[string]bool{key: true}
	for _, change := range []func(*archive.Part){
		func(p *archive.Part) { p.Bucket += "2" },
		func(p *archive.Part) { p.Bucket, p.Key = p.Bucket+"i", p.Key[1:] },
		func(p *archive.Part) { p.Version = "4" },
		func(p *archive.Part) { p.BatchID = "parcels/2" },
		func(p *archive.Part) { p.Day = p.Day.Add(24 * time.Hour) },
		func(p *archive.Part) { p.First++ },
	} {
		p := base
		change(&p)
		k := p.ObjectKey()
		if keys[k] {
			t.Errorf("%+v has the key of another part", p)
		}
		keys[k] = true
	}
	same := base
	same.Day = base.Day.Add(30 * time.Minute)
	if same.ObjectKey() != key {
		t.Error("another time of the same day makes another key")
	}
}
