package mcmsuite

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMCMSuite_MakeTestIntegration checks that the suite that MCM's providers import passes with our drivers in local
// mode.
func TestMCMSuite_MakeTestIntegration(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("starts a control plane, and virtual machines")
	}
	t.Parallel()
	for _, driver := range []string{"sim", "vm"} {
		t.Run(driver, func(t *testing.T) { runScript(t, driver) })
	}
}

func runScript(t *testing.T, driver string) {
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	millwright, logs := filepath.Join(dir, "millwright"), filepath.Join(dir, "logs")
	script := fmt.Sprintf("#!/bin/sh\n%s exec %q \"$@\"\n", program.Environment, os.Args[0])
	if err := os.WriteFile(millwright, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("bash", filepath.Join(root, "hack", "test-integration.sh"))
	command.Env = append(os.Environ(), "CONTROL_KUBECONFIG=", "DRIVER="+driver, "MILLWRIGHT="+millwright, "CONTROLLERS_TEST_LOGS="+logs)
	out, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Ran 10 of 10 Specs") {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"mc_process.log", "mcm_process.log"} {
		if info, err := os.Stat(filepath.Join(logs, name)); err != nil || info.Size() == 0 {
			t.Errorf("the log %s: %v", name, err)
		}
	}
}
