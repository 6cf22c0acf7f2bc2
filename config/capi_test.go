package config_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const infrastructureGroup = "infrastructure.millwright.dev"

// crdsOfClusterAPI returns the CRDs, by kind, through which Cluster API gets machines.
func crdsOfClusterAPI(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crds := readCRDs(t)
	maps.DeleteFunc(crds, func(_ string, crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd.Spec.Group != infrastructureGroup
	})
	if len(crds) != 4 {
		t.Fatalf("got %d CRDs of %s", len(crds), infrastructureGroup)
	}
	return crds
}

// TestClusterAPICRD_FollowsBothContracts: each CRD is labeled for both contracts, and has the fields that they require, with the
// expected types.
func TestClusterAPICRD_FollowsBothContracts(t *testing.T) {
	fields := map[string]map[string]string{
		"MillwrightMachine": {
			".spec.providerID": "string", ".spec.failureDomain": "string", ".status.ready": "boolean",
			".status.initialization.provisioned": "boolean", ".status.failureDomain": "string",
			".status.failureReason": "string", ".status.failureMessage": "string",
			".status.addresses[].type": "string", ".status.addresses[].address": "string",
			".status.conditions[].type": "string", ".status.conditions[].status": "string",
		},
		"MillwrightMachineTemplate": {
			".spec.template.metadata.labels{}": "string", ".spec.template.metadata.annotations{}": "string",
			".spec.template.spec.providerID": "string", ".status.capacity{}": "int-or-string",
			".status.nodeInfo.architecture": "string", ".status.nodeInfo.operatingSystem": "string",
		},
		"MillwrightCluster": {
			".spec.controlPlaneEndpoint.host": "string", ".spec.controlPlaneEndpoint.port": "integer/int32",
			".status.ready": "boolean", ".status.initialization.provisioned": "boolean",
			".status.failureDomains[].name": "string", ".status.failureDomains[].controlPlane": "boolean",
			".status.failureDomains[].attributes{}": "string", ".status.conditions[].type": "string",
			".spec.failureDomainsFrom.driver": "string", ".spec.failureDomainsFrom.providerSpec": "object+unknown",
			".spec.failureDomainsFrom.machineClassRef.name": "string", ".spec.failureDomainsFrom.credentialsSecretRef.name": "string",
		},
		"MillwrightClusterTemplate": {".spec.template.spec.controlPlaneEndpoint.host": "string"},
	}
	for kind, crd := range crdsOfClusterAPI(t) {
		for _, contract := range []string{"v1beta1", "v1beta2"} {
			if got := crd.Labels["cluster.x-k8s.io/"+contract]; got != "v1alpha1" {
				t.Errorf("%s: got label %[3]q for contract %[2]s", kind, contract, got)
			}
		}
		got := map[string]string{}
		walk(schemaOf(crd), "", func(path string, schema *apiextensionsv1.JSONSchemaProps) { got[path] = typeOf(schema) })
		for path, want := range map[string]string{".apiVersion": "string", ".kind": "string", ".metadata": "object", ".spec": "object"} {
			if got[path] != want {
				t.Errorf("%s %s has type %q, want %q", kind, path, got[path], want)
			}
		}
		for path, want := range fields[kind] {
			if got[path] != want {
				t.Errorf("%s %s has type %q, want %q", kind, path, got[path], want)
			}
		}
	}
}

// TestClusterAPICRD_NamesAndVersions: autoscalers derive the plural of a kind without a dictionary.
func TestClusterAPICRD_NamesAndVersions(t *testing.T) {
	for kind, crd := range crdsOfClusterAPI(t) {
		names := crd.Spec.Names
		if want := strings.ToLower(kind) + "s"; names.Plural != want || crd.Name != want+"."+infrastructureGroup {
			t.Errorf("%s has plural %s in CRD %s", kind, names.Plural, crd.Name)
		}
		if v := crd.Spec.Versions; len(v) != 1 || !v[0].Served || !v[0].Storage || v[0].Name != "v1alpha1" {
			t.Errorf("%s: want v1alpha1 as the only version, served and stored", kind)
		}
		if len(names.ShortNames) != 1 || names.ListKind != kind+"List" {
			t.Errorf("%s: short names %v, list kind %s", kind, names.ShortNames, names.ListKind)
		}
		if status := crd.Spec.Versions[0].Subresources; (status != nil && status.Status != nil) != (kind != "MillwrightClusterTemplate") {
			t.Errorf("%s: subresources %+v", kind, status)
		}
	}
}

// TestClusterAPICRD_RequiredFields checks the fields that a machine requires, and the status that exists from the start (S12).
func TestClusterAPICRD_RequiredFields(t *testing.T) {
	schema := schemaOf(crdsOfClusterAPI(t)["MillwrightMachine"])
	if diff := cmp.Diff([]string{"driver"}, schema.Properties["spec"].Required); diff != "" {
		t.Errorf("required in the spec (-want +got):\n%s", diff)
	}
	// The controllers rely on this rule.
	exactlyOne := func(rule apiextensionsv1.ValidationRule) bool {
		return rule.Rule == "has(self.providerSpec) != has(self.machineClassRef)"
	}
	if rules := schema.Properties["spec"].XValidations; !slices.ContainsFunc(rules, exactlyOne) {
		t.Errorf("no rule requires exactly one of providerSpec and machineClassRef; got rules %v", rules)
	}
	status := schema.Properties["status"]
	if ready := status.Properties["ready"]; !slices.Contains(status.Required, "ready") || string(ready.Default.Raw) != "false" {
		t.Errorf("status.ready: required %v, default %s", status.Required, ready.Default.Raw)
	}
}

// TestClusterAPICRD_TemplateHasSpecOfObject (S19): the spec in a template is the same as that of the objects created from it.
func TestClusterAPICRD_TemplateHasSpecOfObject(t *testing.T) {
	crds := crdsOfClusterAPI(t)
	for _, kind := range []string{"MillwrightMachine", "MillwrightCluster"} {
		of, in := schemaOf(crds[kind]).Properties["spec"], schemaOf(crds[kind+"Template"]).Properties["spec"].Properties["template"].Properties["spec"]
		of.Description, in.Description = "", ""
		if diff := cmp.Diff(of, in); diff != "" {
			t.Errorf("spec of %s (-kind +template):\n%s", kind, diff)
		}
	}
}

// TestClusterAPICRD_OlderContractHasMapOfFailureDomains: in that contract, the field is a map with the other fields of the
// list's items.
func TestClusterAPICRD_OlderContractHasMapOfFailureDomains(t *testing.T) {
	var overlay struct {
		Patches []struct {
			Target struct{ Kind, Name string }
			Patch  string
		}
	}
	readYAML(t, "capi/v1beta1/kustomization.yaml", &overlay)
	if len(overlay.Patches) != 1 {
		t.Fatalf("got %d patches", len(overlay.Patches))
	}
	var operations []struct {
		Op, Path string
		Value    apiextensionsv1.JSONSchemaProps
	}
	if err := yaml.Unmarshal([]byte(overlay.Patches[0].Patch), &operations); err != nil {
		t.Fatal(err)
	}
	crd := crdsOfClusterAPI(t)["MillwrightCluster"]
	if target := overlay.Patches[0].Target; target.Kind != "CustomResourceDefinition" || target.Name != crd.Name {
		t.Errorf("got patch for %+v", target)
	}
	const schema = "/spec/versions/0/schema/openAPIV3Schema"
	field, ok := strings.CutPrefix(operations[0].Path, schema+"/properties/status/properties/")
	list, there := schemaOf(crd).Properties["status"].Properties[field]
	if !ok || !there || field != "failureDomains" || operations[0].Op != "replace" {
		t.Fatalf("got patch %+v", operations)
	}
	value := operations[0].Value
	if value.Type != "object" || value.AdditionalProperties == nil || value.MaxProperties == nil || *value.MaxProperties != *list.MaxItems {
		t.Fatalf("got schema %+v", value)
	}
	want := maps.Clone(list.Items.Schema.Properties)
	delete(want, "name")
	if diff := cmp.Diff(want, value.AdditionalProperties.Schema.Properties); diff != "" {
		t.Errorf("fields (-list +map):\n%s", diff)
	}
}

// TestClusterAPIComponents_AreComplete: the components contain every CRD of the provider, the CRD that its machines may
// refer to, both roles, and the policy that limits one of them.
func TestClusterAPIComponents_AreComplete(t *testing.T) {
	var base struct{ Resources []string }
	readYAML(t, "capi/base/kustomization.yaml", &base)
	for _, name := range append(glob(t, "crd/infrastructure.*.yaml"), "crd/machine.sapcloud.io_machineclasses.yaml", "rbac/capi-role.yaml", "rbac/capi-core-role.yaml", "policy/secret-finalizers.yaml") {
		if !slices.Contains(base.Resources, "../../"+name) {
			t.Errorf("%s is not in the components", name)
		}
	}
	for _, resource := range base.Resources {
		if _, err := os.Stat(filepath.Join("capi/base", resource)); err != nil {
			t.Error(err)
		}
	}
}

// TestClusterAPIRole_PermitsCoreToUseKinds (S45).
func TestClusterAPIRole_PermitsCoreToUseKinds(t *testing.T) {
	role := &rbacv1.ClusterRole{}
	parse(t, read(t, "rbac/capi-core-role.yaml"), role)
	// Cluster API's own manager, and that of KubeadmControlPlanes.
	for _, label := range []string{"cluster.x-k8s.io/aggregate-to-manager", "kubeadm.controlplane.cluster.x-k8s.io/aggregate-to-manager"} {
		if role.Labels[label] != "true" {
			t.Errorf("got labels %v", role.Labels)
		}
	}
	if len(role.Rules) != 1 {
		t.Fatalf("got %d rules", len(role.Rules))
	}
	var resources []string
	for _, crd := range crdsOfClusterAPI(t) {
		resources = append(resources, crd.Spec.Names.Plural)
	}
	rule := role.Rules[0]
	for _, list := range [][]string{resources, rule.Resources, rule.Verbs} {
		slices.Sort(list)
	}
	want := []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	if !slices.Equal(rule.Resources, resources) || !slices.Equal(rule.Verbs, want) || !slices.Equal(rule.APIGroups, []string{infrastructureGroup}) {
		t.Errorf("got rule %+v", rule)
	}
}

// TestClusterAPIRole_ManagerHasExactPermissions (M17, R7): the manager has exactly these permissions. It deletes no objects, so that
// objects of Cluster API stay until Cluster API deletes them. It reads Secrets only by name, so that an attacker
// who takes over the process cannot list them.
func TestClusterAPIRole_ManagerHasExactPermissions(t *testing.T) {
	read := []string{"list", "watch"}
	changed := []string{"list", "watch", "patch"}
	want := map[string][]string{
		"infrastructure.millwright.dev/millwrightmachines":                {"get", "list", "watch", "patch"},
		"infrastructure.millwright.dev/millwrightclusters":                changed,
		"infrastructure.millwright.dev/millwrightmachinetemplates":        read,
		"infrastructure.millwright.dev/millwrightmachines/status":         {"patch"},
		"infrastructure.millwright.dev/millwrightclusters/status":         {"patch"},
		"infrastructure.millwright.dev/millwrightmachinetemplates/status": {"patch"},
		"cluster.x-k8s.io/clusters":                                       read,
		"cluster.x-k8s.io/machines":                                       read,
		"machine.sapcloud.io/machineclasses":                              changed,
		"/secrets":                                                        {"get", "patch"},
		"/events":                                                         {"create", "patch"},
		"infrastructure.millwright.dev/secretfinalizers":                  {"update"}, // permits nothing
	}
	got := map[string][]string{}
	for _, rule := range readRules(t, "rbac/capi-role.yaml", "ClusterRole", "millwright-capi") {
		forEachPermission(rule, func(p permission) {
			got[p.group+"/"+p.resource] = append(got[p.group+"/"+p.resource], p.verb)
		})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("permissions (-want +got):\n%s", diff)
	}
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}
