package drain_test

import (
	"testing"

	"github.com/millwright-dev/millwright/test/env"
)

func TestMain(m *testing.M) { env.Main(m) }
