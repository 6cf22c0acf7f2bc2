package kubeconfig

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/millwright-dev/millwright/internal/cli/localdir"
)

// TestKubeconfig_Precedence checks the precedence: flags, environment, the user's kubeconfig, local mode in this directory.
func TestKubeconfig_Precedence(t *testing.T) {
	for name, tc := range map[string]struct {
		// Sources that exist in addition to the flags.
		environment, local, home bool
		// unset removes the current context of the user's kubeconfig.
		unset           bool
		flags           func(other string) Flags
		context         string
		host, namespace string
	}{
		"only the user's":              {home: true, host: "https://home-one", namespace: "default"},
		"local mode in this directory": {local: true, host: "https://local-one", namespace: "default"},
		"the user's before local mode": {home: true, local: true, host: "https://home-one", namespace: "default"},
		"no current context":           {home: true, local: true, unset: true, host: "https://local-one", namespace: "default"},
		"a context of the user's":      {home: true, local: true, unset: true, context: "two", host: "https://home-two", namespace: "of-two"},
		"the environment":              {home: true, local: true, environment: true, host: "https://environment-one", namespace: "default"},
		"--kubeconfig":                 {home: true, local: true, environment: true, flags: func(other string) Flags { return Flags{File: other} }, host: "https://other-one", namespace: "default"},
		"--dir":                        {home: true, local: true, environment: true, flags: func(other string) Flags { return Flags{Dir: filepath.Dir(other)} }, host: "https://other-one", namespace: "default"},
		"another context":              {environment: true, context: "two", host: "https://environment-two", namespace: "of-two"},
		"another context of local one": {local: true, context: "two", host: "https://local-two", namespace: "of-two"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			t.Setenv("HOME", filepath.Join(dir, "home"))
			t.Setenv("KUBERNETES_SERVICE_HOST", "") // not in a cluster
			t.Setenv("KUBECONFIG", "")
			// client-go reads HOME only once, so the user's kubeconfig is passed by path.
			home := filepath.Join(dir, "home", ".kube", "config")
			before := clientcmd.RecommendedHomeFile
			clientcmd.RecommendedHomeFile = home
			t.Cleanup(func() { clientcmd.RecommendedHomeFile = before })
			if tc.home {
				writeContexts(t, home, "home")
			}
			if tc.unset {
				withoutCurrentContext(t, home)
			}
			if tc.local {
				writeContexts(t, filepath.Join(dir, localdir.Default, "kubeconfig"), "local")
			}
			if tc.environment {
				t.Setenv("KUBECONFIG", writeContexts(t, filepath.Join(dir, "environment"), "environment"))
			}
			var flags Flags
			if other := writeContexts(t, filepath.Join(dir, "other", "kubeconfig"), "other"); tc.flags != nil {
				flags = tc.flags(other)
			}
			flags.Context = tc.context
			var notes bytes.Buffer
			flags.notes = &notes
			config, namespace, err := flags.Load()
			if local := tc.flags != nil && flags.Dir != "" || strings.Contains(tc.host, "local"); local != strings.HasPrefix(notes.String(), "Using the local cluster in ") {
				t.Errorf("a cluster at %s, notes %q", tc.host, &notes)
			}
			if err != nil || config.Host != tc.host || namespace != tc.namespace {
				t.Errorf("leads to %v, namespace %q, %v", config, namespace, err)
			}
		})
	}
}

// TestKubeconfig_NotFound checks the advice if nothing was started, and the error if a given path does not exist.
func TestKubeconfig_NotFound(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	before := clientcmd.RecommendedHomeFile
	clientcmd.RecommendedHomeFile = filepath.Join(t.TempDir(), "config")
	t.Cleanup(func() { clientcmd.RecommendedHomeFile = before })
	if err := os.WriteFile("empty", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		environment string
		flags       Flags
		wantText    string
	}{
		"nothing":              {wantText: "millwright up"},
		"another directory":    {environment: "/nowhere", flags: Flags{Dir: "other"}, wantText: "no cluster found in other; start one"},
		"the environment":      {environment: "/nowhere/at/all", wantText: "kubeconfig /nowhere/at/all not found or without a cluster (from KUBECONFIG)"},
		"an empty kubeconfig":  {environment: "/nowhere", flags: Flags{File: "empty"}, wantText: "kubeconfig empty not found"},
		"two at the same time": {flags: Flags{File: "empty", Dir: "other"}, wantText: "cannot be used with --dir"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", tc.environment)
			if _, _, err := tc.flags.Load(); err == nil || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("got %v, want %q", err, tc.wantText)
			}
		})
	}
}

// writeContexts writes a kubeconfig with the contexts "one" (current) and "two" (with the namespace "of-two").
func writeContexts(t *testing.T, path, host string) string {
	t.Helper()
	file := clientcmdapi.NewConfig()
	for _, name := range []string{"one", "two"} {
		file.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + host + "-" + name}
		file.Contexts[name] = &clientcmdapi.Context{Cluster: name}
	}
	file.Contexts["two"].Namespace = "of-two"
	file.CurrentContext = "one"
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func withoutCurrentContext(t *testing.T, path string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	config.CurrentContext = ""
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
}

// TestKubeconfig_CompletesContexts checks the completion of --context, which needs no cluster.
func TestKubeconfig_CompletesContexts(t *testing.T) {
	flags := Flags{File: writeContexts(t, filepath.Join(t.TempDir(), "kubeconfig"), "other")}
	if found, _ := flags.completeContexts(nil, nil, ""); !slices.Equal(found, []string{"one", "two"}) {
		t.Errorf("completes %q", found)
	}
}
