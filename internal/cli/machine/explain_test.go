package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestExplain_Clusters checks that a single given cluster is used as both control and target cluster.
func TestExplain_Clusters(t *testing.T) {
	dir := t.TempDir()
	content, err := os.ReadFile(env.Kubeconfig(t, "https://local"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // not in a cluster
	control, target, other := env.Kubeconfig(t, "https://control"), env.Kubeconfig(t, "https://target"), env.Kubeconfig(t, "https://other")
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
			if flags.File = tc.kubeconfig; tc.kubeconfig+tc.control+strings.TrimPrefix(tc.target, connect.None) == "" {
				flags.Dir = dir
			}
			if err := flags.validate(&pflag.FlagSet{}); err != nil {
				t.Fatal(err)
			}
			gotControl, gotTarget, _, err := flags.clusters()
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("got %v, want %v", err, tc.wantErr)
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

func hostOf(config *rest.Config) string {
	if config == nil {
		return ""
	}
	return config.Host
}

// TestExplain_Namespace checks that the default namespace is that of the context, as for the rollout
// commands.
func TestExplain_Namespace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	content := `{"current-context": "one", "clusters": [{"name": "c", "cluster": {"server": "https://host"}}], "contexts": [
		{"name": "one", "context": {"cluster": "c"}}, {"name": "two", "context": {"cluster": "c", "namespace": "of-two"}}]}`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		flags explainFlags
		want  string
	}{
		"of the context":           {explainFlags{Flags: kubeconfig.Flags{File: path, Context: "two"}}, "of-two"},
		"the flag comes first":     {explainFlags{Flags: kubeconfig.Flags{File: path, Namespace: "mine", Context: "two"}}, "mine"},
		"the context has none":     {explainFlags{Flags: kubeconfig.Flags{File: path}}, "default"},
		"of the control cluster's": {explainFlags{control: path, target: connect.None, Flags: kubeconfig.Flags{Context: "two"}}, "of-two"},
		"of the only cluster's":    {explainFlags{target: path, Flags: kubeconfig.Flags{Context: "two"}}, "of-two"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, namespace, err := tc.flags.gatherer(); namespace != tc.want || err != nil {
				t.Errorf("namespace %q, %v; want %q", namespace, err, tc.want)
			}
		})
	}
}
