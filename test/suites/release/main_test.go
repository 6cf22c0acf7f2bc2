package release

import (
	"cmp"
	"fmt"
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/support/capicore"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// The versions of Cluster API for which there is a clusterctl.
const (
	oldest = "v1.7.1"
	former = "v1.13.6"
	newest = capicore.Newest
)

// version is the version that this run uses.
var version = cmp.Or(os.Getenv("MILLWRIGHT_CAPI"), newest)

// contracts are the contracts that this version supports, its own last.
var contracts = map[string][]string{oldest: {"v1beta1"}, former: {"v1beta1", "v1beta2"}, newest: {"v1beta1", "v1beta2"}}[version]

// contract is the contract for which this version searches a provider.
func contract() string { return contracts[len(contracts)-1] }

func TestMain(m *testing.M) {
	enterContainer()
	program.Main()
	if contracts == nil {
		fmt.Fprintf(os.Stderr, "MILLWRIGHT_CAPI=%s: there are only %s, %s and %s\n", version, oldest, former, newest)
		os.Exit(2)
	}
	env.Main(m)
}

// coreFile returns the path of a file that hack/capi.sh has built.
func coreFile(t *testing.T, name string) string {
	t.Helper()
	file, err := capicore.File(version, name)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// root is the root directory of the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
