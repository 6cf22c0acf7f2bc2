package capi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/capicore"
	"github.com/millwright-dev/millwright/test/support/env"
)

const coreUser = "capi-core"

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
	if err := capicore.InstallStubs(ctx, c.Admin); err != nil {
		return err
	}
	if err := fitContract(ctx, c.Client); err != nil {
		return err
	}
	if err := grantCore(ctx, c); err != nil {
		return err
	}
	return capicore.Core{Version: version, User: coreUser, Features: coreFeatures}.Start(ctx, c.ControlPlane)
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
		path, err := capicore.File(version, "rbac", file)
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
