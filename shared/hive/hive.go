// Package hive writes and reads the values of hive partitions in object keys
// (name=value/), which DuckDB, Athena and Spark turn back into columns.
package hive

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

const (
	// nullPartition is hive's name for a partition without a value, here the empty batch id.
	nullPartition = "__HIVE_DEFAULT_PARTITION__"
	// maxEscaped bounds an escaped batch id in bytes. The key around it takes less than 100.
	maxEscaped = 600
	// shortened sets a digest off from the beginning it stands for the rest of. It
	// never stands in an escaped id otherwise.
	shortened = '~'
)

// Escape makes a batch id a partition value, as hive escapes it: letters,
// digits, '_', '-' and '.' stand for themselves, every other byte becomes %XX. So
// there is no '/' in it, and it cannot leave its prefix; a leading '.' is escaped too.
// The empty id becomes hive's default partition.
//
// [Unescape] reverses it, but for ids of more than 600 bytes when escaped:
// of those the beginning is kept, and '~' and the id's SHA-256 keep them apart. Their
// full text is in the batch_id column.
func Escape(id string) string {
	if id == "" {
		return nullPartition
	}
	var b strings.Builder
	b.Grow(len(id))
	cut := -1 // where the escaped text may end to leave room for the digest
	for i := 0; i < len(id); i++ {
		if cut < 0 && b.Len() > maxEscaped-sha256.Size*2-4 {
			cut = b.Len()
		}
		c := id[i]
		plain := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.'
		if i == 0 && (c == '.' || id == nullPartition) {
			plain = false
		}
		if plain {
			b.WriteByte(c)
			continue
		}
		const digits = "0123456789ABCDEF"
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&0xF])
	}
	if b.Len() <= maxEscaped {
		return b.String()
	}
	sum := sha256.Sum256([]byte(id))
	return b.String()[:cut] + string(shortened) + hex.EncodeToString(sum[:])
}

// Unescape returns the batch id that [Escape] made the partition
// value of. The error says where the value was shortened or is no such value.
func Unescape(value string) (string, error) {
	if value == nullPartition {
		return "", nil
	}
	if strings.IndexByte(value, shortened) >= 0 {
		return "", fmt.Errorf("unescape batch id %q: it was shortened; the batch_id column of its files has the whole", value)
	}
	id, err := unescape(value)
	if err != nil {
		return "", err
	}
	if id == "" || Escape(id) != value {
		return "", fmt.Errorf("unescape batch id %q: not a partition value that Escape makes", value)
	}
	return id, nil
}

// Value decodes the value of a name=value segment of any hive-partitioned key,
// such as an inbox key that a pipeline chose: %XX is a byte. A value in which some
// '%' begins no such escape is returned as it is.
func Value(value string) string {
	id, err := unescape(value)
	if err != nil {
		return value
	}
	return id
}

func unescape(value string) (string, error) {
	if strings.IndexByte(value, '%') < 0 {
		return value, nil
	}
	var b strings.Builder
	b.Grow(len(value))
	for i := 0; i < len(value); i++ {
		if value[i] != '%' {
			b.WriteByte(value[i])
			continue
		}
		if i+3 > len(value) {
			return "", fmt.Errorf("unescape %q: it ends within an escape", value)
		}
		c, err := strconv.ParseUint(value[i+1:i+3], 16, 8)
		if err != nil {
			return "", fmt.Errorf("unescape %q: %q at byte %d is no escape", value, value[i:i+3], i)
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), nil
}
