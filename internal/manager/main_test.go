package manager

import (
	"os"
	"testing"

	"github.com/millwright-dev/millwright/test/env"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(pluginSocket); socket != "" {
		bePlugin(socket)
		return
	}
	env.AtATime(2) // managers of all controllers and of one half cannot be in a process together: their metrics are in each other's way
	env.Main(m)
}
