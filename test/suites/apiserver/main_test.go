package apiserver

import (
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

func TestMain(m *testing.M) {
	program.Main()
	env.Main(m)
}

// changed is a separate control plane for tests that change what all namespaces share: CRDs, policies, an
// aggregated API.
var changed = env.WithNumber(1)
