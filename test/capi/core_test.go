package capi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/internal/local"
	"github.com/millwright-dev/millwright/test/env"
)

const (
	coreUser = "capi-core"
	// coreFeatures are those that a management cluster has switched on which uses
	// ClusterClass.
	coreFeatures = "ClusterTopology=true"
	// coreReady is how long the core may take to start: its caches wait for each CRD.
	coreReady = 2 * time.Minute
)

// cores holds how the start of the core went at each control plane, which tests share.
var cores struct {
	mu      sync.Mutex
	started map[*local.ControlPlane]func() error
}

// requireCore provides the core beside a control plane that tests share.
func requireCore(t *testing.T, c *env.Cluster) {
	t.Helper()
	cores.mu.Lock()
	start, ok := cores.started[c.ControlPlane]
	if !ok {
		// The core outlives the test that happens to be the first.
		start = sync.OnceValue(func() error { return startCore(context.WithoutCancel(t.Context()), c) })
		if cores.started == nil {
			cores.started = map[*local.ControlPlane]func() error{}
		}
		cores.started[c.ControlPlane] = start
	}
	cores.mu.Unlock()
	if err := start(); err != nil {
		t.Fatal(err)
	}
}

func startCore(ctx context.Context, c *env.Cluster) error {
	crds, err := coreFile("crd")
	if err != nil {
		return err
	}
	if err := local.InstallCRDs(ctx, c.Admin, os.DirFS(crds)); err != nil {
		return err
	}
	if err := local.InstallCRDs(ctx, c.Admin, os.DirFS("testdata/crd")); err != nil {
		return err
	}
	if err := grantCore(ctx, c); err != nil {
		return err
	}
	plane := c.ControlPlane
	webhooks, err := plane.PortFor("capi-webhooks", 0)
	if err != nil {
		return err
	}
	health, err := plane.PortFor("capi-health", 0)
	if err != nil {
		return err
	}
	diagnostics, err := plane.PortFor("capi-diagnostics", 0)
	if err != nil {
		return err
	}
	dir := filepath.Join(plane.Dir(), "capi")
	certificate, err := writeCertificate(dir)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := plane.WriteKubeconfig(kubeconfig, coreUser); err != nil {
		return err
	}
	path, err := coreFile("core")
	if err != nil {
		return err
	}
	err = plane.StartChild(ctx, local.Child{
		Name: "capi-core", Path: path, Grace: 10 * time.Second,
		Args: []string{
			"--kubeconfig", kubeconfig, "--feature-gates", coreFeatures,
			"--webhook-port", fmt.Sprint(webhooks), "--webhook-cert-dir", dir,
			"--health-addr", fmt.Sprintf("127.0.0.1:%d", health),
			"--diagnostics-address", fmt.Sprintf("127.0.0.1:%d", diagnostics), "--insecure-diagnostics",
		},
	})
	if err != nil {
		return err
	}
	if err := awaitReady(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", health)); err != nil {
		return err
	}
	return registerWebhooks(ctx, c.Client, webhooks, certificate)
}

// grantCore gives the core the roles that it is shipped with, and with them those that
// providers give it by aggregation.
func grantCore(ctx context.Context, c *env.Cluster) error {
	for _, file := range []string{"role.yaml", "aggregated_role.yaml"} {
		path, err := coreFile("rbac", file)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := local.ApplyText(ctx, c.Client, text, metav1.NamespaceSystem); err != nil {
			return err
		}
	}
	if err := local.Apply(ctx, c.Admin, os.DirFS("testdata"), "stub-role.yaml", metav1.NamespaceSystem); err != nil {
		return err
	}
	for _, role := range []string{"manager-role", "aggregated-manager-role"} {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: coreUser + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: coreUser}},
		}
		if err := c.Client.Create(ctx, binding); err != nil {
			return err
		}
	}
	return nil
}

// writeCertificate makes what the core's webhooks are served with.
func writeCertificate(dir string) ([]byte, error) {
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, err
	}
	return certificate, errors.Join(os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
}

func awaitReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, coreReady)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the core is not ready after %v: %w", coreReady, errors.Join(ctx.Err(), err))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// registerWebhooks registers the core's webhooks as it is shipped with them, but for where
// they are reached.
func registerWebhooks(ctx context.Context, c client.Client, port int, caBundle []byte) error {
	path, err := coreFile("webhook", "manifests.yaml")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	reach := func(config *admissionv1.WebhookClientConfig) {
		config.URL = ptr.To(fmt.Sprintf("https://127.0.0.1:%d%s", port, *config.Service.Path))
		config.Service, config.CABundle = nil, caBundle
	}
	for _, document := range strings.Split(string(text), "\n---\n") {
		mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
		if err := yaml.Unmarshal([]byte(document), mutating); err != nil {
			return err
		}
		if mutating.Kind == "MutatingWebhookConfiguration" {
			mutating.Name = coreUser
			for i := range mutating.Webhooks {
				reach(&mutating.Webhooks[i].ClientConfig)
			}
			if err := c.Create(ctx, mutating); err != nil {
				return err
			}
			continue
		}
		if err := yaml.Unmarshal([]byte(document), validating); err != nil {
			return err
		}
		validating.Name = coreUser
		for i := range validating.Webhooks {
			reach(&validating.Webhooks[i].ClientConfig)
		}
		if err := c.Create(ctx, validating); err != nil {
			return err
		}
	}
	return nil
}
