package drain_test

import (
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

func TestMain(m *testing.M) { env.Main(m) }
