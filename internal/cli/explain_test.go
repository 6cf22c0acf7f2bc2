package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	explanation "github.com/millwright-dev/millwright/internal/observe/explain"
)

// TestExplainAnswers: what the command says that cannot ask a cluster.
func TestExplainAnswers(t *testing.T) {
	nobody := kubeconfig(t, "https://127.0.0.1:1")
	for name, tc := range map[string]struct {
		args   []string
		status int
		stderr string
	}{
		"help":             {[]string{"explain"}, 0, ""},
		"mistyped kind":    {[]string{"explain", "machin"}, 2, "did you mean machine or machineset or machinedeployment?"},
		"class":            {[]string{"explain", "machineclass", "pool-v1"}, 2, "classes are not explained: a class does nothing by itself"},
		"class by kind":    {[]string{"explain", "mcc/pool-v1"}, 2, "kubectl get machineclasses.machine.sapcloud.io pool-v1"},
		"by kind":          {[]string{"explain", "mcd/a", "--kubeconfig", nobody}, 1, "reading machine deployment default/a"},
		"set by kind":      {[]string{"explain", "-n", "b", "mcs/a", "--kubeconfig", nobody}, 1, "reading machine set b/a"},
		"machine by kind":  {[]string{"explain", "machine/a", "--kubeconfig", nobody}, 1, "reading machine default/a"},
		"full kind":        {[]string{"explain", "MachineDeployments.machine.sapcloud.io", "a", "--kubeconfig", nobody}, 1, "reading machine deployment default/a"},
		"flag first":       {[]string{"explain", "-n", "b", "machine", "a", "--kubeconfig", nobody}, 1, "reading machine b/a"},
		"kind without":     {[]string{"explain", "mcd/"}, 2, "name of one MachineDeployment"},
		"by kind, flags":   {[]string{"explain", "mcd/a", "-o", "yaml"}, 2, `--output: "yaml"`},
		"two slashes":      {[]string{"explain", "mcd/a/b"}, 2, "name of one MachineDeployment"},
		"other kind":       {[]string{"explain", "pod/a"}, 2, `there is no command "pod/a"`},
		"no set":           {[]string{"explain", "machineset"}, 2, "name of one MachineSet"},
		"no deployment":    {[]string{"explain", "mcd", "a", "b"}, 2, "name of one MachineDeployment"},
		"no name":          {[]string{"explain", "machine"}, 2, "name of one Machine"},
		"two names":        {[]string{"explain", "machine", "a", "b"}, 2, "name of one Machine"},
		"bad output":       {[]string{"explain", "machine", "a", "-o", "yaml"}, 2, `--output: "yaml"`},
		"empty name":       {[]string{"explain", "machine", ""}, 2, "name of one Machine"},
		"and a folder":     {[]string{"explain", "machine", "a", "--dir=x", "--target-kubeconfig=y"}, 2, "--dir: cannot be used"},
		"no such context":  {[]string{"explain", "machine", "a", "--kubeconfig", nobody, "--context", "other"}, 1, `context "other" does not exist`},
		"two ways to say":  {[]string{"explain", "machine", "a", "--kubeconfig=x", "--control-kubeconfig=y"}, 2, "--kubeconfig: cannot be used"},
		"negative retry":   {[]string{"explain", "machine", "a", "--resource-exhausted-retry=-1s"}, 2, "--resource-exhausted-retry: must not be negative"},
		"set: nobody":      {[]string{"explain", "mcs", "a", "--kubeconfig", nobody}, 1, "reading machine set default/a"},
		"deployment: none": {[]string{"explain", "mcd", "a", "--kubeconfig", nobody}, 1, "reading machine deployment default/a"},
		"negative timeout": {[]string{"explain", "machine", "a", "--machine-drain-timeout=-1s"}, 2, "must not be negative"},
		"no cluster":       {[]string{"explain", "machine", "a", "--dir", t.TempDir()}, 1, "millwright up"},
		"nobody answers":   {[]string{"explain", "machine", "a", "--kubeconfig", nobody}, 1, "reading machine default/a"},
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

// TestExplainWhichClusters: an operator's command asks one cluster for both if it is told of
// one only.
func TestExplainWhichClusters(t *testing.T) {
	dir := t.TempDir()
	content, err := os.ReadFile(kubeconfig(t, "https://local"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // outside of any cluster
	control, target, other := kubeconfig(t, "https://control"), kubeconfig(t, "https://target"), kubeconfig(t, "https://other")
	for name, tc := range map[string]struct {
		kubeconfig, control, target string
		wantControl, wantTarget     string
		wantErr                     error
	}{
		"local mode":           {wantControl: "https://local", wantTarget: "https://local"},
		"local, no target":     {target: "none", wantControl: "https://local"},
		"one cluster":          {kubeconfig: other, wantControl: "https://other", wantTarget: "https://other"},
		"both":                 {control: control, target: target, wantControl: "https://control", wantTarget: "https://target"},
		"control only":         {control: control, wantControl: "https://control", wantTarget: "https://control"},
		"target only":          {target: target, wantControl: "https://target", wantTarget: "https://target"},
		"control, no target":   {control: control, target: "none", wantControl: "https://control"},
		"in cluster, but none": {control: "inClusterConfig", wantErr: rest.ErrNotInCluster},
		"missing file":         {control: control, target: "/nowhere/at/all", wantErr: os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			flags := &explainFlags{control: tc.control, target: tc.target}
			if flags.kubeconfig = tc.kubeconfig; tc.kubeconfig+tc.control+strings.TrimPrefix(tc.target, kubeconfigNone) == "" {
				flags.dir = dir
			}
			if err := flags.validateClusters(); err != nil {
				t.Fatal(err)
			}
			gotControl, _, err := flags.controlConfig()
			var gotTarget *rest.Config
			if err == nil {
				gotTarget, err = flags.targetConfig(gotControl)
			}
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("answers %v, want %v", err, tc.wantErr)
			}
			if err != nil {
				return
			}
			if gotControl.Host != tc.wantControl || hostOf(gotTarget) != tc.wantTarget {
				t.Errorf("control %s, target %s", gotControl.Host, hostOf(gotTarget))
			}
		})
	}
}

// TestExplainWhichNamespace: that of the context, as for the commands about rollouts.
func TestExplainWhichNamespace(t *testing.T) {
	path := contexts(t, filepath.Join(t.TempDir(), "kubeconfig"), "host")
	for name, tc := range map[string]struct {
		flags explainFlags
		want  string
	}{
		"of the context":           {explainFlags{clusterFlags: clusterFlags{kubeconfig: path}, context: "two"}, "of-two"},
		"the flag comes first":     {explainFlags{clusterFlags: clusterFlags{kubeconfig: path, namespace: "mine"}, context: "two"}, "mine"},
		"the context has none":     {explainFlags{clusterFlags: clusterFlags{kubeconfig: path}}, "default"},
		"of the control cluster's": {explainFlags{control: path, target: kubeconfigNone, context: "two"}, "of-two"},
		"of the only cluster's":    {explainFlags{target: path, context: "two"}, "of-two"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, namespace, err := tc.flags.gatherer(); namespace != tc.want || err != nil {
				t.Errorf("namespace %q, %v; want %q", namespace, err, tc.want)
			}
		})
	}
}

// TestExplainAssumesTheManagersDefaults: who gives no flag to either gets the right times. Which
// cluster and namespace are asked, the kubeconfig says, as for other commands of users.
func TestExplainAssumesTheManagersDefaults(t *testing.T) {
	manager, explain := defaults(newManagerCommand().Flags()), defaults(explainedMachine().command().Flags())
	compared := 0
	for name, value := range explain {
		of, both := mcmFlags[name]
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
	if explanation.DefaultDrainTimeout.String() != mcmFlags["machine-drain-timeout"] {
		t.Errorf("drain timeout %v", explanation.DefaultDrainTimeout)
	}
}
