package queue_test

import (
	"errors"
	"testing"

	"github.com/paulmach/orb"
	"github.com/paulmach/orb/encoding/wkt"

	"geodlq/infra/local/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// asError is errors.As, which go vet wants at hand where a test decides by type.
func asError[T error](err error, target *T) bool { return errors.As(err, target) }

func text(g orb.Geometry) string { return wkt.MarshalString(g) }
