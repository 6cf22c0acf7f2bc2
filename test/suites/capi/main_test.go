package capi

import (
	"cmp"
	"fmt"
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/support/capicore"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// The versions of Cluster API for which there are modules.
const (
	oldest = "v1.7.1"
	former = "v1.13.6"
	newest = capicore.Newest
)

// version is the version that this run uses.
var version = cmp.Or(os.Getenv("MILLWRIGHT_CAPI"), newest)

// contract is the newest contract of this version of the core, and the version of the core's kinds that tests
// write.
var contract = map[string]string{oldest: "v1beta1", former: "v1beta2", newest: "v1beta2"}[version]

func TestMain(m *testing.M) {
	program.Main()
	if contract == "" {
		fmt.Fprintf(os.Stderr, "MILLWRIGHT_CAPI=%s: there are only %s, %s and %s\n", version, oldest, former, newest)
		os.Exit(2)
	}
	env.AtATime(6)
	env.Main(m)
}
