// Package tier determines the runs in which a test takes part.
//
// "make test" runs every test by default. A test that calls [All] at its beginning runs only in "make test-all".
// Tests that take even longer belong to targets of their own, such as "make crash", for which [Exhaustive] is
// true.
//
// Nothing is chosen at random: a test belongs to one tier, and does the same in each run.
package tier

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Variable is the environment variable with the tier that runs. It is empty for "make test", or has one of the
// values below.
const Variable = "MILLWRIGHT_TIER"

const (
	all        = "all"
	exhaustive = "exhaustive"
)

// All skips a test or subtest that does not run in "make test".
func All(t testing.TB) {
	t.Helper()
	if !isAll() {
		t.Skipf("runs in make test-all (%s=%s)", Variable, all)
	}
}

// Exhaustive reports whether a test that runs a fixed sample of many cases should run all of them.
func Exhaustive() bool { return current() == exhaustive }

func isAll() bool { return current() != "" }

func current() string {
	switch tier := os.Getenv(Variable); tier {
	case "", all, exhaustive:
		return tier
	default:
		panic(fmt.Sprintf("%s=%s: want %s, %s or nothing", Variable, tier, all, exhaustive))
	}
}

// Check is like rapid.Check with a fixed seed, and with ten times as many checks in "make test-all". The flags
// -rapid.seed and -rapid.checks take precedence.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	fixed.Do(func() {
		checks := 100
		if isAll() {
			checks = 1000
		}
		setDefault(t, "rapid.seed", 1)
		setDefault(t, "rapid.checks", checks)
	})
	rapid.Check(t, property)
}

// fixed runs before the first check, since others may run in parallel.
var fixed sync.Once

func setDefault(t *testing.T, name string, value int) {
	t.Helper()
	f := flag.Lookup(name)
	if f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(strconv.Itoa(value)); err != nil {
		t.Error(err)
	}
}
