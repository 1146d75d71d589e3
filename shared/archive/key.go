package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"

	"geodlq/shared/hive"
)

// Prefix is where dead letters lie in their bucket. Nothing else is written below it.
const Prefix = "dead-letters/"

// dayLayout is the form of the date partition.
const dayLayout = "2006-01-02"

// Part names one archive file: the inbox object its rows came from, their batch,
// their day, and the ordinal of the first of them. How an object is cut into parts
// depends on its bytes alone, so a retry names the same parts.
type Part struct {
	Bucket, Key string
	Version     string // version id, or the ETag in a bucket without versions
	BatchID     string
	Day         time.Time // any time of the UTC day the object arrived on
	First       int64     // ordinal of the part's first record in the object
}

// layout distinguishes how objects are cut into parts. It must change whenever the
// cut does: a retry by new code would else meet files that hold other rows.
const layout = "1"

// ObjectKey returns the key the part is stored under. It is at most 700 bytes; S3 allows 1,024.
func (p Part) ObjectKey() string {
	h := sha256.New()
	for _, s := range []string{layout, p.Bucket, p.Key, p.Version, p.BatchID, p.Day.UTC().Format(dayLayout)} {
		// Length first: no two different parts may run together into one name.
		h.Write(strconv.AppendInt(nil, int64(len(s)), 10))
		h.Write([]byte{':'})
		h.Write([]byte(s))
	}
	h.Write(strconv.AppendInt(nil, p.First, 10))
	digest := hex.EncodeToString(h.Sum(nil)[:16])
	return BatchPrefix(p.BatchID) + "date=" + p.Day.UTC().Format(dayLayout) + "/" + digest + ".parquet"
}

// BatchPrefix returns the prefix under which all files of a batch lie. Where the
// batch id had to be shortened (see [hive.Escape]) it is still its own.
func BatchPrefix(batchID string) string { return Prefix + "batch_id=" + hive.Escape(batchID) + "/" }
