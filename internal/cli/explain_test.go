package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestExplain_OutputWithoutCluster checks the output of the command without a cluster.
func TestExplain_OutputWithoutCluster(t *testing.T) {
	unreachable := env.Kubeconfig(t, "https://127.0.0.1:1")
	for name, tc := range map[string]struct {
		args   []string
		status int
		stderr string
	}{
		"help":             {[]string{"explain"}, 0, ""},
		"mistyped kind":    {[]string{"explain", "machin"}, 2, "did you mean machine or machineset or machinedeployment?"},
		"class":            {[]string{"explain", "machineclass", "pool-v1"}, 2, "classes cannot be explained"},
		"class by kind":    {[]string{"explain", "mcc/pool-v1"}, 2, "kubectl get machineclasses.machine.sapcloud.io pool-v1"},
		"by kind":          {[]string{"explain", "mcd/a", "--kubeconfig", unreachable}, 1, "reading machine deployment default/a"},
		"set by kind":      {[]string{"explain", "-n", "b", "mcs/a", "--kubeconfig", unreachable}, 1, "reading machine set b/a"},
		"machine by kind":  {[]string{"explain", "machine/a", "--kubeconfig", unreachable}, 1, "reading machine default/a"},
		"full kind":        {[]string{"explain", "MachineDeployments.machine.sapcloud.io", "a", "--kubeconfig", unreachable}, 1, "reading machine deployment default/a"},
		"flag first":       {[]string{"explain", "-n", "b", "machine", "a", "--kubeconfig", unreachable}, 1, "reading machine b/a"},
		"kind without":     {[]string{"explain", "mcd/"}, 2, "the name of a MachineDeployment"},
		"by kind, flags":   {[]string{"explain", "mcd/a", "-o", "xml"}, 2, `--output: unknown format "xml"`},
		"two slashes":      {[]string{"explain", "mcd/a/b"}, 2, "the name of a MachineDeployment"},
		"other kind":       {[]string{"explain", "pod/a"}, 2, `unknown command "pod/a"`},
		"no set":           {[]string{"explain", "machineset"}, 2, "the name of a MachineSet"},
		"no deployment":    {[]string{"explain", "mcd", "a", "b"}, 2, "the name of a MachineDeployment"},
		"no name":          {[]string{"explain", "machine"}, 2, "the name of a Machine"},
		"two names":        {[]string{"explain", "machine", "a", "b"}, 2, "the name of a Machine"},
		"bad output":       {[]string{"explain", "machine", "a", "-o", "xml"}, 2, `--output: unknown format "xml"`},
		"empty name":       {[]string{"explain", "machine", ""}, 2, "the name of a Machine"},
		"and a directory":  {[]string{"explain", "machine", "a", "--dir=x", "--target-kubeconfig=y"}, 2, "--dir: cannot be used"},
		"no such context":  {[]string{"explain", "machine", "a", "--kubeconfig", unreachable, "--context", "other"}, 1, `context "other" does not exist`},
		"two kubeconfigs":  {[]string{"explain", "machine", "a", "--kubeconfig=x", "--control-kubeconfig=y"}, 2, "--kubeconfig: cannot be used"},
		"negative retry":   {[]string{"explain", "machine", "a", "--resource-exhausted-retry=-1s"}, 2, "--resource-exhausted-retry: must not be negative"},
		"unreachable set":  {[]string{"explain", "mcs", "a", "--kubeconfig", unreachable}, 1, "reading machine set default/a"},
		"unreachable pool": {[]string{"explain", "mcd", "a", "--kubeconfig", unreachable}, 1, "reading machine deployment default/a"},
		"negative timeout": {[]string{"explain", "machine", "a", "--machine-drain-timeout=-1s"}, 2, "must not be negative"},
		"no cluster":       {[]string{"explain", "machine", "a", "--dir", t.TempDir()}, 1, "millwright up"},
		"unreachable":      {[]string{"explain", "machine", "a", "--kubeconfig", unreachable}, 1, "reading machine default/a"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if status := Main(Program{Args: tc.args, Stdout: &stdout, Stderr: &stderr}); status != tc.status {
				t.Errorf("exit status %d, want %d", status, tc.status)
			}
			if !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("stderr lacks %q:\n%s", tc.stderr, &stderr)
			}
		})
	}
}

// TestExplain_DefaultsMatchManager checks that the command and the manager have the same default timeouts.
// The kubeconfig selects the cluster and namespace, as for other user commands.
func TestExplain_DefaultsMatchManager(t *testing.T) {
	manager, explain := flagsOf(t, "manager"), flagsOf(t, "explain", "machine")
	compared := 0
	for name, value := range explain {
		of, both := mcmMachineFlags[name]
		if !both || strings.HasSuffix(name, "kubeconfig") || name == "namespace" {
			continue
		}
		compared++
		if of != value {
			t.Errorf("--%s: %s, want %s", name, value, of)
		}
		if now, has := manager[name]; has && now != value {
			t.Errorf("--%s: %s, the manager has %s", name, value, now)
		}
	}
	if compared < 4 {
		t.Errorf("%d flags are the manager's, want at least 4", compared)
	}
	if timeouts.DefaultDrain.String() != mcmMachineFlags["machine-drain-timeout"] {
		t.Errorf("drain timeout %v", timeouts.DefaultDrain)
	}
}
