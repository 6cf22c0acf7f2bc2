package env

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

// Backup saves the data of etcd. The API server must not be shared with other tests; see WithOwn. restore stops the control
// plane, replaces its data with the saved data, and starts the control plane again on the same ports. If raised, resource
// versions continue above those from before the restore, as with the option --bump-revision of etcdutl.
func (c *Cluster) Backup(t testing.TB) (restore func(raised bool)) {
	t.Helper()
	data, saved := filepath.Join(c.ControlPlane.Dir(), "etcd"), filepath.Join(t.TempDir(), "etcd")
	c.whileStopped(t, func() error { return os.CopyFS(saved, os.DirFS(data)) }, controlplane.Etcd)
	return func(raised bool) {
		t.Helper()
		c.whileStopped(t, func() error {
			last, err := c.revision(t.Context())
			if err != nil {
				return err
			}
			c.whileStopped(t, func() error {
				if err := os.RemoveAll(data); err != nil {
					return err
				}
				return os.CopyFS(data, os.DirFS(saved))
			}, controlplane.Etcd)
			if !raised {
				return nil
			}
			return c.raise(t.Context(), last)
		}, controlplane.APIServer)
	}
}

// Advance writes objects until resource versions are so far ahead of a backup that the restored API server's own writes during
// startup do not reach them.
func (c *Cluster) Advance(t testing.TB) {
	t.Helper()
	for range 500 {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: "advance-"}}
		if err := c.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

// RestartAPIServer kills the API server, and starts it again. The API server must not be shared with other tests.
func (c *Cluster) RestartAPIServer(t testing.TB) {
	t.Helper()
	c.whileStopped(t, func() error { return nil }, controlplane.APIServer)
}

// whileStopped calls a function while components are stopped. It stops them in reverse order, and starts them in order.
func (c *Cluster) whileStopped(t testing.TB, do func() error, components ...string) {
	t.Helper()
	now, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range components {
		name := components[len(components)-1-i]
		if err := c.ControlPlane.StopComponent(now, name); err != nil {
			t.Fatalf("stopping %s: %v", name, err)
		}
	}
	if err := do(); err != nil {
		t.Fatalf("while %s are stopped: %v", components, err)
	}
	for _, name := range components {
		if err := c.ControlPlane.StartComponent(t.Context(), name); err != nil {
			t.Fatalf("starting %s: %v", name, err)
		}
	}
}
