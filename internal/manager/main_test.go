package manager

import (
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

// TestMain runs the tests, or is the plug-in of one.
func TestMain(m *testing.M) {
	if socket := os.Getenv(pluginSocket); socket != "" {
		bePlugin(socket)
		return
	}
	env.Main(m)
}
