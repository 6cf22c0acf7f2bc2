package pod

import (
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/node"
)

func TestMain(m *testing.M) {
	node.Main()
	env.Main(m)
}
