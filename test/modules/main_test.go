package modules

import (
	"testing"

	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/program"
)

func TestMain(m *testing.M) {
	program.Main()
	env.Main(m)
}
