package export

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	"github.com/klauspost/compress/zstd"
)

//go:generate go run ./generate

// definitions are lines of code, tab and PROJJSON, compressed. The codes are EPSG's,
// and ESRI's where EPSG has none of the number.
//
//go:embed projjson.zst
var definitions []byte

// lonLat is the CRS whose definition GeoParquet leaves out: OGC:CRS84, which is
// EPSG:4326 with the axes in the order that GeoParquet has for every CRS.
const lonLat = 4326

var unpacked = sync.OnceValues(func() ([]byte, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.DecodeAll(definitions, nil)
})

// ProjJSON returns the definition of a CRS as PROJJSON; ok is false where there is
// none, as for a row that somebody added to spatial_ref_sys.
func ProjJSON(code int) (definition json.RawMessage, ok bool, err error) {
	text, err := unpacked()
	if err != nil {
		return nil, false, fmt.Errorf("unpack the CRS definitions: %w", err)
	}
	key := append(strconv.AppendInt([]byte{'\n'}, int64(code), 10), '\t')
	var rest []byte
	if bytes.HasPrefix(text, key[1:]) {
		rest = text[len(key)-1:]
	} else if at := bytes.Index(text, key); at >= 0 {
		rest = text[at+len(key):]
	} else {
		return nil, false, nil
	}
	line, _, _ := bytes.Cut(rest, []byte{'\n'})
	return json.RawMessage(line), true, nil
}
