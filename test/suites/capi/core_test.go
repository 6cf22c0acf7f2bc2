package capi

import (
	"context"
	"encoding/json"
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
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
)

const (
	coreUser = "capi-core"
	// coreReady is how long the core may take to start. Its caches wait for each CRD.
	coreReady = env.WaitTimeout
)

// coreFeatures are those of a management cluster that uses ClusterClass, and in-place updates if the core
// supports them.
var coreFeatures = map[string]string{
	oldest: "ClusterTopology=true",
	former: "ClusterTopology=true,RuntimeSDK=true,InPlaceUpdates=true",
	newest: "ClusterTopology=true,RuntimeSDK=true,InPlaceUpdates=true",
}[version]

// cores contains the result of starting the core for each control plane, which tests share.
var cores struct {
	mu      sync.Mutex
	started map[*controlplane.ControlPlane]func() error
}

// requireCore provides a core for a control plane that tests share.
func requireCore(t *testing.T, c *env.Cluster) {
	t.Helper()
	cores.mu.Lock()
	start, ok := cores.started[c.ControlPlane]
	if !ok {
		// The core outlives the test that starts it.
		start = sync.OnceValue(func() error { return startCore(context.WithoutCancel(t.Context()), c) })
		if cores.started == nil {
			cores.started = map[*controlplane.ControlPlane]func() error{}
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
	if err := controlplane.InstallCRDs(ctx, c.Admin, os.DirFS(crds)); err != nil {
		return err
	}
	if err := controlplane.InstallCRDs(ctx, c.Admin, os.DirFS("testdata/crd")); err != nil {
		return err
	}
	if err := fitContract(ctx, c.Client); err != nil {
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
	err = plane.StartChild(ctx, controlplane.Child{
		Name: coreUser, Path: path, Grace: 10 * time.Second,
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
	if err := convert(ctx, c.Client, crds, webhooks, certificate); err != nil {
		return err
	}
	return registerWebhooks(ctx, c.Client, webhooks, certificate)
}

// convert makes the API server convert objects of the kinds in a directory between their versions by a manager's
// webhooks, as the components of a release do.
func convert(ctx context.Context, c client.Client, crds string, port int, caBundle []byte) error {
	files, err := filepath.Glob(filepath.Join(crds, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		if len(crd.Spec.Versions) == 1 {
			continue
		}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"conversion": apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ClientConfig: &apiextensionsv1.WebhookClientConfig{
					URL: ptr.To(fmt.Sprintf("https://127.0.0.1:%d/convert", port)), CABundle: caBundle,
				},
				ConversionReviewVersions: []string{"v1"},
			},
		}}})
		if err != nil {
			return err
		}
		named := &unstructured.Unstructured{}
		named.SetGroupVersionKind(crdKind)
		named.SetName(crd.Name)
		if err := c.Patch(ctx, named, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("setting the conversion of %s: %w", crd.Name, err)
		}
	}
	return nil
}

// fitContract changes our CRDs as the components for this contract do.
func fitContract(ctx context.Context, c client.Client) error {
	text, err := os.ReadFile(filepath.Join("../../../config/capi", contract, "kustomization.yaml"))
	if err != nil {
		return err
	}
	var overlay struct {
		Patches []struct {
			Target struct{ Name string }
			Patch  string
		}
	}
	if err := yaml.Unmarshal(text, &overlay); err != nil {
		return err
	}
	for _, change := range overlay.Patches {
		patch, err := yaml.YAMLToJSON([]byte(change.Patch))
		if err != nil {
			return err
		}
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(crdKind)
		crd.SetName(change.Target.Name)
		if err := c.Patch(ctx, crd, client.RawPatch(types.JSONPatchType, patch)); err != nil {
			return fmt.Errorf("changing %s for contract %s: %w", crd.GetName(), contract, err)
		}
	}
	return nil
}

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// coreLog returns the end of the core's log about a namespace. It is short, because the messages of a failed test
// precede it, and must not be lost when only the end of an output is kept.
func coreLog(c *env.Cluster) string { return logOf(c, coreUser) }

// logOf returns the same for one of Cluster API's managers.
func logOf(c *env.Cluster, manager string) string {
	const most, width = 15, 250
	log, err := os.ReadFile(filepath.Join(c.ControlPlane.Dir(), "logs", manager+".log"))
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, c.Namespace) {
			lines = append(lines, strings.TrimSpace(line[:min(len(line), width)]))
		}
	}
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// grantCore gives the core its shipped roles, and with them those that providers add by aggregation.
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
		if err := controlplane.ApplyText(ctx, c.Client, text, metav1.NamespaceSystem); err != nil {
			return err
		}
	}
	if err := controlplane.Apply(ctx, c.Admin, os.DirFS("testdata"), "stub-role.yaml", metav1.NamespaceSystem); err != nil {
		return err
	}
	if err := controlplane.Apply(ctx, c.Admin, config.Files, "rbac/capi-core-role.yaml", metav1.NamespaceSystem); err != nil {
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
	for group, resource := range map[string]string{kind("MillwrightMachine").Group: "millwrightmachines", "stub.millwright.dev": "stubcontrolplanes"} {
		if err := awaitGrant(ctx, c.Client, coreUser, group, resource); err != nil {
			return err
		}
	}
	return nil
}

// awaitGrant waits until the controller manager has aggregated a provider's role into that of a manager. A
// manager that starts earlier fails, and backs off.
func awaitGrant(ctx context.Context, c client.Client, user, group, resource string) error {
	review := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: group, Resource: resource},
	}}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, waitTimeout, true, func(ctx context.Context) (bool, error) {
		asked := review.DeepCopy()
		err := c.Create(ctx, asked)
		return asked.Status.Allowed, err
	})
	if err != nil {
		return fmt.Errorf("%s may not list %s: %w", user, resource, err)
	}
	return nil
}

// writeCertificate creates the serving certificate of the core's webhooks.
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

// registerWebhooks registers the core's webhooks as shipped, except for their addresses.
func registerWebhooks(ctx context.Context, c client.Client, port int, caBundle []byte) error {
	path, err := coreFile("webhook", "manifests.yaml")
	if err != nil {
		return err
	}
	return register(ctx, c, path, registration{name: coreUser, port: port, caBundle: caBundle})
}

// registration contains what differs for webhooks in a test.
type registration struct {
	name     string
	port     int
	caBundle []byte
	// namespace limits the webhooks to one namespace. If empty, they apply to all.
	namespace string
}

func (r registration) reach(config *admissionv1.WebhookClientConfig) {
	config.URL = ptr.To(fmt.Sprintf("https://127.0.0.1:%d%s", r.port, *config.Service.Path))
	config.Service, config.CABundle = nil, r.caBundle
}

func (r registration) selector() *metav1.LabelSelector {
	if r.namespace == "" {
		return nil
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.namespace}}
}

// register registers the webhooks of a manifest.
func register(ctx context.Context, c client.Client, path string, r registration) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, document := range strings.Split(string(text), "\n---\n") {
		mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
		if err := errors.Join(yaml.Unmarshal([]byte(document), mutating), yaml.Unmarshal([]byte(document), validating)); err != nil {
			return err
		}
		if mutating.Kind == "MutatingWebhookConfiguration" {
			mutating.Name = r.name
			for i := range mutating.Webhooks {
				r.reach(&mutating.Webhooks[i].ClientConfig)
				mutating.Webhooks[i].NamespaceSelector = r.selector()
			}
			if err := c.Create(ctx, mutating); err != nil {
				return err
			}
			continue
		}
		validating.Name = r.name
		for i := range validating.Webhooks {
			r.reach(&validating.Webhooks[i].ClientConfig)
			validating.Webhooks[i].NamespaceSelector = r.selector()
		}
		if err := c.Create(ctx, validating); err != nil {
			return err
		}
	}
	return nil
}
