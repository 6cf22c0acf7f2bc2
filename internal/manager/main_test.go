package manager

import (
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

// TestMain runs the tests, or serves as the driver plug-in of a test.
func TestMain(m *testing.M) {
	if socket := os.Getenv(pluginSocket); socket != "" {
		bePlugin(socket)
		return
	}
	env.Main(m)
}
