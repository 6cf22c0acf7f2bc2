package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/internal/cli/rollout"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestRollout_OutputWithoutCluster checks the output of the commands without a cluster.
func TestRollout_OutputWithoutCluster(t *testing.T) {
	unreachable := env.Kubeconfig(t, "https://127.0.0.1:1")
	for name, tc := range map[string]struct {
		args   []string
		status int
		stderr string
	}{
		"help":               {[]string{}, 0, ""},
		"mistyped":           {[]string{"statsu"}, 2, "did you mean status?"},
		"no name":            {[]string{"status"}, 2, "the name of a MachineDeployment is required"},
		"empty name":         {[]string{"status", ""}, 2, "the name of a MachineDeployment is required"},
		"kind only":          {[]string{"status", "mcd/"}, 2, "the name of a MachineDeployment is required"},
		"three":              {[]string{"status", "mcd", "a", "b"}, 2, "specify one MachineDeployment"},
		"two slashes":        {[]string{"status", "a/b/c"}, 2, `invalid name "a/b/c"`},
		"two names":          {[]string{"restart", "a", "b"}, 2, `unsupported kind "a"; specify one MachineDeployment as NAME, machinedeployment/NAME or mcd/NAME`},
		"another kind":       {[]string{"pause", "machineset/a"}, 2, `unsupported kind "machineset"`},
		"negative timeout":   {[]string{"status", "a", "--timeout=-1s"}, 2, "millwright: --timeout: must not be negative"},
		"both negative":      {[]string{"status", "a", "--timeout=-1s", "--revision=-1"}, 2, "--revision, --timeout: must not be negative"},
		"negative revision":  {[]string{"history", "a", "--revision=-1"}, 2, "--revision"},
		"negative target":    {[]string{"undo", "a", "--to-revision=-1"}, 2, "millwright: --to-revision: must not be negative"},
		"no cluster":         {[]string{"status", "a", "--dir", t.TempDir()}, 1, "millwright up"},
		"no such kubeconfig": {[]string{"status", "a", "--kubeconfig", "/nowhere/at/all"}, 1, "/nowhere/at/all"},
		"no such context":    {[]string{"undo", "a", "--kubeconfig", unreachable, "--context", "other"}, 1, `context "other" does not exist`},
		"no API server":      {[]string{"status", "a", "--kubeconfig", unreachable}, 1, "reading machine deployment default/a"},
		"change without API": {[]string{"resume", "a", "--kubeconfig", unreachable}, 1, "reading machine deployment default/a"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if status := Main(Program{Args: append([]string{"rollout"}, tc.args...), Stdout: &stdout, Stderr: &stderr}); status != tc.status {
				t.Errorf("exit status %d, want %d", status, tc.status)
			}
			if !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("stderr lacks %q:\n%s", tc.stderr, &stderr)
			}
		})
	}
}

// TestCompletion_OffersNoFiles checks that shell completion does not offer files for a name, also without a cluster.
func TestCompletion_OffersNoFiles(t *testing.T) {
	t.Setenv("KUBECONFIG", env.Kubeconfig(t, "https://127.0.0.1:1"))
	for _, command := range [][]string{{"rollout", "status"}, {"rollout", "undo"}, {"rollout", "pause"}, {"explain", "machine"}, {"explain", "machinedeployment"}} {
		var stdout, stderr bytes.Buffer
		args := append(append([]string{cobra.ShellCompRequestCmd}, command...), "")
		if status := Main(Program{Args: args, Stdout: &stdout, Stderr: &stderr}); status != 0 || stdout.String() != ":4\n" { // ShellCompDirectiveNoFileComp
			t.Errorf("%q: exit status %d, %q", command, status, stdout.String())
		}
	}
}

// TestVersionFlag checks that --version prints the same as the version command.
func TestVersionFlag(t *testing.T) {
	var output [2]bytes.Buffer
	for i, args := range [][]string{{"version", "--client"}, {"--version"}} {
		if status := Main(Program{Version: "v1.2.3", Args: args, Stdout: &output[i], Stderr: io.Discard}); status != 0 {
			t.Errorf("%s: exit status %d", args, status)
		}
	}
	if output[0].String() != output[1].String() || !strings.HasPrefix(output[1].String(), "millwright v1.2.3 (") {
		t.Errorf("version prints %q, --version prints %q", output[0].String(), output[1].String())
	}
}

// TestRollout_FlagsMatchKubectl checks that the flags have the names and shorthands of "kubectl rollout".
func TestRollout_FlagsMatchKubectl(t *testing.T) {
	want := map[string]map[string]string{
		"status":  {"watch": "true", "timeout": "0s", "revision": "0"},
		"history": {"revision": "0"},
		"undo":    {"to-revision": "0"},
		"pause":   {}, "resume": {}, "restart": {}, "diff": {"filename": ""},
	}
	commands := map[string]*cobra.Command{}
	for _, cmd := range rollout.New().Commands() {
		commands[cmd.Name()] = cmd
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Usage == "" || strings.HasSuffix(flag.Usage, ".") || strings.Contains(flag.Usage, "\n") {
				t.Errorf("%s --%s: %q", cmd.Name(), flag.Name, flag.Usage)
			}
		})
	}
	for name, flags := range want {
		cmd := commands[name]
		if cmd == nil {
			t.Errorf("no command %q", name)
			continue
		}
		has := flagsOf(t, "rollout", name)
		for flag, value := range flags {
			if has[flag] != value {
				t.Errorf("%s --%s: %q, want %q", name, flag, has[flag], value)
			}
		}
		for _, flag := range []string{"namespace", "kubeconfig", "context"} {
			if cmd.Flags().Lookup(flag) == nil {
				t.Errorf("%s has no --%s", name, flag)
			}
		}
	}
}
