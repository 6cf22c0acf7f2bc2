// Package kubeconfigtest writes kubeconfigs for tests.
package kubeconfigtest

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Write writes one that leads to a host, and returns its path.
func Write(t *testing.T, host string) string {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: host}
	file.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	file.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// WriteContexts writes a kubeconfig with the contexts "one", which is current, and "two",
// whose namespace is "of-two".
func WriteContexts(t *testing.T, path, host string) string {
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
