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
	env.AtATime(6)
	env.Main(m)
}
