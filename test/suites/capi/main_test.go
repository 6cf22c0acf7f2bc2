package capi

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// The versions of Cluster API for which there are modules.
const (
	oldest = "v1.7.1"
	former = "v1.13.6"
	newest = "v1.14.2"
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

// coreFile returns the path of a file that hack/capi.sh has built.
func coreFile(path ...string) (string, error) {
	cache, err := localdir.Cache()
	if err != nil {
		return "", err
	}
	file := filepath.Join(append([]string{cache, "capi-" + version, "current"}, path...)...)
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("the core of Cluster API is not built; run hack/capi.sh %s: %w", version, err)
	}
	return file, nil
}
