package main

import (
	"testing"

	"geodlq/infra/local/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }
