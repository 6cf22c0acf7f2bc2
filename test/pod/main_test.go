package pod

import (
	"testing"

	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/node"
)

func TestMain(m *testing.M) {
	node.Main()
	env.Main(m)
}
