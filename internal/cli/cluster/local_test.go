package cluster

import (
	"bytes"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/cli/folder"
)

// TestHintsFitTheDriver: what is said to be applied is what the driver can make.
func TestHintsFitTheDriver(t *testing.T) {
	for driver, want := range map[string]string{folder.DriverVM: "apply -f examples/\n", folder.DriverSim: "apply -f examples/sim/\n"} {
		t.Run(driver, func(t *testing.T) {
			mode := &local{upFlags: &upFlags{}}
			mode.Driver.Name = driver
			var out bytes.Buffer
			mode.howToGoOn(&out, "kubectl", "kubeconfig")
			if !strings.Contains(out.String(), want) {
				t.Errorf("says:\n%s", &out)
			}
		})
	}
}

// TestNamesOfHosts: those of hosts that are not there yet are reserved, too, and no others.
func TestNamesOfHosts(t *testing.T) {
	for name, want := range map[string]bool{
		"host-1": true, "host-100": true, "host-": false, "host-a": false, "host-1a": false, "ghost-1": false, "host": false, "": false,
	} {
		if got := isHost(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
