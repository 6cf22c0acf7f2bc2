package manager

import (
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/env"
)

// TestMain runs the tests. Those with a manager of one half are not parallel: of managers of all controllers and of a half
// in one process, the metrics of the second are refused.
func TestMain(m *testing.M) {
	if socket := os.Getenv(pluginSocket); socket != "" {
		bePlugin(socket)
		return
	}
	env.Main(m)
}
