package config_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// grant is a permission of MCM's own roles for some resources of a group. "*" means all.
type grant struct {
	group            string
	resources, verbs []string
	names            []string // nil means any name
}

// inControl returns their permissions in the control cluster, where leases have these names.
func inControl(leases ...string) []grant {
	return []grant{
		{group: "machine.sapcloud.io", resources: []string{"*"}, verbs: []string{"*"}},
		{group: "", resources: []string{"secrets", "configmaps", "endpoints", "events", "pods"}, verbs: []string{"*"}},
		{group: "coordination.k8s.io", resources: []string{"leases"}, verbs: []string{"create"}},
		{group: "coordination.k8s.io", resources: []string{"leases"}, verbs: []string{"get", "watch", "update"}, names: leases},
	}
}

// mcmGrants are the permissions in MCM's installations, by our roles, which must not need more.
var mcmGrants = map[[3]string][]grant{
	{"rbac/control-role.yaml", "Role", "millwright"}: inControl("machine-controller", "machine-controller-manager"),
	{"rbac/target-role.yaml", "ClusterRole", "millwright-target"}: {
		{group: "", resources: []string{"nodes", "nodes/status"}, verbs: []string{"*"}},
		{group: "", resources: []string{"pods"}, verbs: []string{"get", "list", "watch", "delete"}},
		{group: "", resources: []string{"pods/eviction"}, verbs: []string{"create"}},
		{
			group: "", resources: []string{"persistentvolumes", "persistentvolumeclaims"},
			verbs: []string{"get", "list", "watch"},
		},
		{group: "storage.k8s.io", resources: []string{"volumeattachments"}, verbs: []string{"get", "list", "watch", "delete"}},
		{group: "policy", resources: []string{"poddisruptionbudgets"}, verbs: []string{"get", "list", "watch"}},
	},
	{"rbac/target-role.yaml", "Role", "millwright-bootstrap"}: {
		{group: "", resources: []string{"secrets"}, verbs: []string{"create", "get", "list", "delete"}},
		// This permits nothing: policy/bootstrap-tokens.yaml limits the identities that have it.
		{group: "machine.millwright.dev", resources: []string{"bootstraptokens"}, verbs: []string{"create"}},
	},
	{"rbac/machine-controller-manager-role.yaml", "Role", "millwright-machine-controller-manager"}: inControl("machine-controller-manager"),
	{"rbac/machine-controller-role.yaml", "Role", "millwright-machine-controller"}:                 inControl("machine-controller"),
	{"rbac/machine-controller-manager-target-role.yaml", "ClusterRole", "millwright-machine-controller-manager-target"}: {
		{group: "", resources: []string{"nodes"}, verbs: []string{"*"}},
	},
	{"rbac/target-role-sim.yaml", "ClusterRole", "millwright-target-sim"}: {
		{group: "", resources: []string{"nodes", "nodes/status"}, verbs: []string{"*"}},
	},
}

func TestRole_GrantsNoMoreThanMCM(t *testing.T) {
	for key, grants := range mcmGrants {
		for _, rule := range readRules(t, key[0], key[1], key[2]) {
			forEachPermission(rule, func(p permission) {
				if !slices.ContainsFunc(grants, func(g grant) bool { return g.covers(p) }) {
					t.Errorf("%s %s: MCM's roles do not grant %+v", key[1], key[2], p)
				}
			})
		}
	}
}

func TestRole_HasNoWildcards(t *testing.T) {
	roles := append(slices.Collect(maps.Keys(mcmGrants)),
		[3]string{"rbac/target-role.yaml", "ClusterRole", "millwright-target-events"},
		[3]string{"rbac/autoscaler-provider-role.yaml", "Role", "millwright-autoscaler-provider"},
		[3]string{"rbac/autoscaler-provider-target-role.yaml", "ClusterRole", "millwright-autoscaler-provider-target"},
		[3]string{"rbac/node-certificates-role.yaml", "ClusterRole", "millwright-node-certificates"},
		[3]string{"local/hosts.yaml", "ClusterRole", "millwright-host"},
		[3]string{"rbac/driver-vm-role.yaml", "Role", "millwright-driver-vm"},
		[3]string{"rbac/driver-vm-cluster-role.yaml", "ClusterRole", "millwright-driver-vm-cluster"},
		[3]string{"rbac/driver-vm-hosts-role.yaml", "ClusterRole", "millwright-driver-vm-hosts"},
		[3]string{"rbac/driver-vm-update-role.yaml", "Role", "millwright-driver-vm-update"},
		[3]string{"rbac/vm-controller-role.yaml", "ClusterRole", "millwright-vm-controller"},
		[3]string{"rbac/vm-controller-role.yaml", "ClusterRole", "millwright-vm-controller-cluster"},
		[3]string{"rbac/vm-controller-role.yaml", "Role", "millwright-vm-authority"},
		[3]string{"rbac/vm-subresources-role.yaml", "ClusterRole", "millwright-vm-subresources"},
		[3]string{"rbac/vm-console-role.yaml", "ClusterRole", "millwright-vm-console-user"},
		[3]string{"rbac/vm-console-role.yaml", "ClusterRole", "millwright-vm-log-reader"},
		[3]string{"rbac/vm-console-role.yaml", "ClusterRole", "millwright-vm-operator"},
		[3]string{"rbac/vm-console-role.yaml", "ClusterRole", "millwright-vm-port-forwarder"},
		[3]string{"rbac/vm-leader-role.yaml", "Role", "millwright-vm-leader"},
		[3]string{"rbac/capi-role.yaml", "ClusterRole", "millwright-capi"},
		[3]string{"rbac/capi-role.yaml", "Role", "millwright-capi-leader"},
		[3]string{"rbac/capi-core-role.yaml", "ClusterRole", "millwright-capi-core"},
		[3]string{"rbac/load-balancer-role.yaml", "ClusterRole", "millwright-load-balancer"},
		[3]string{"rbac/load-balancer-leader-role.yaml", "Role", "millwright-load-balancer-leader"},
		[3]string{"rbac/cloud-controller-role.yaml", "ClusterRole", "millwright-cloud-controller"},
		[3]string{"rbac/cloud-controller-role.yaml", "Role", "millwright-cloud-controller-leader"},
		[3]string{"rbac/cloud-controller-infrastructure-role.yaml", "Role", "millwright-cloud-controller-infrastructure"},
		[3]string{"rbac/cloud-controller-hosts-role.yaml", "ClusterRole", "millwright-cloud-controller-hosts"},
		[3]string{"rbac/fleet-role.yaml", "ClusterRole", "millwright-fleet"},
		[3]string{"rbac/fleet-role.yaml", "Role", "millwright-fleet-replicas"},
		[3]string{"rbac/fleet-target-role.yaml", "ClusterRole", "millwright-fleet-target"},
	)
	for _, key := range roles {
		for _, rule := range readRules(t, key[0], key[1], key[2]) {
			forEachPermission(rule, func(p permission) {
				if p.group == "*" || p.resource == "*" || p.verb == "*" {
					t.Errorf("%s %s grants with a wildcard: %+v", key[1], key[2], p)
				}
			})
		}
	}
}

// TestClusterRole_DoesNotListSecrets: bound in all namespaces, a role with list or watch would read every Secret
// of the cluster. With get alone, a Secret must be known by name.
func TestClusterRole_DoesNotListSecrets(t *testing.T) {
	roles := map[[2]string]int{
		{"rbac/target-role.yaml", "millwright-target"}: 0, {"rbac/target-role.yaml", "millwright-target-events"}: 0,
		{"rbac/vm-controller-role.yaml", "millwright-vm-controller"}: 1, {"rbac/capi-role.yaml", "millwright-capi"}: 2,
	}
	for role, want := range roles {
		found := 0
		for _, rule := range readRules(t, role[0], "ClusterRole", role[1]) {
			forEachPermission(rule, func(p permission) {
				if p.resource != "secrets" {
					return
				}
				found++
				if p.verb != "get" && p.verb != "patch" {
					t.Errorf("%s allows %s on Secrets", role[1], p.verb)
				}
			})
		}
		if found != want {
			t.Errorf("got %[2]d permissions for Secrets in %[1]s, want %[3]d", role[1], found, want)
		}
	}
}

// permission is a single permission of a rule. An empty name means any name.
type permission struct{ group, resource, verb, name string }

func forEachPermission(rule rbacv1.PolicyRule, visit func(permission)) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					visit(permission{group, resource, verb, name})
				}
			}
		}
	}
}

func (g grant) covers(p permission) bool {
	has := func(list []string, value string) bool {
		return slices.Contains(list, "*") || slices.Contains(list, value)
	}
	return g.group == p.group && has(g.resources, p.resource) && has(g.verbs, p.verb) &&
		(g.names == nil || slices.Contains(g.names, p.name))
}

// wide are the ClusterRoles whose bindings for all namespaces permit access to Secrets by default, with the reason.
var wide = map[string]string{
	"millwright-capi": "as usual for providers of Cluster API, whose clusters are in namespaces of their users; policy/secret-finalizers.yaml limits it",
}

// TestClusterRoleBinding_GrantsNoAccessToSecretsOrPods checks that an installation by default has no permissions in all
// namespaces with which it could read Secrets or run Pods.
func TestClusterRoleBinding_GrantsNoAccessToSecretsOrPods(t *testing.T) {
	checked := map[string]bool{}
	for _, file := range bindings(t) {
		for _, document := range bytes.Split(file, []byte("\n---\n")) {
			binding := &rbacv1.ClusterRoleBinding{}
			parse(t, document, binding)
			if name := binding.RoleRef.Name; binding.Kind == "ClusterRoleBinding" && wide[name] == "" {
				checked[name] = true
				for _, rule := range clusterRole(t, name) {
					forEachPermission(rule, func(p permission) {
						if p.group == "" && (p.resource == "secrets" || p.resource == "pods" && p.verb == "create" || p.resource == "serviceaccounts/token") {
							t.Errorf("%s grants %+v in all namespaces", name, p)
						}
					})
				}
			}
		}
	}
	if len(checked) < 4 {
		t.Errorf("checked only %v", checked)
	}
}

// bindings returns the files with bindings of the installations with kustomize, without the components that users add
// explicitly.
func bindings(t *testing.T) [][]byte {
	t.Helper()
	var files [][]byte
	for _, pattern := range []string{"*/base/bindings.yaml", "machine/*/bindings.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("found no files %s: %v", pattern, err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, data)
		}
	}
	return files
}

// clusterRole returns the rules of a shipped ClusterRole.
func clusterRole(t *testing.T, name string) []rbacv1.PolicyRule {
	t.Helper()
	for _, file := range glob(t, "rbac/*.yaml") {
		for _, document := range bytes.Split(read(t, file), []byte("\n---\n")) {
			role := &rbacv1.ClusterRole{}
			parse(t, document, role)
			if role.Kind == "ClusterRole" && role.Name == name {
				return role.Rules
			}
		}
	}
	t.Fatalf("found no ClusterRole %s", name)
	return nil
}
