package config_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// shape is the part of a CRD, in addition to its fields, that kubectl, autoscalers and users rely on.
type shape struct {
	Names    []string // plural, singular, short
	Columns  []string // name, type, path, and the priority if it is not 0
	Status   bool
	Scale    []string // paths of desired replicas, current replicas and selector
	Required []string // required fields, except those of Kubernetes' own types
}

func TestCRD_HasShapeOfMCM(t *testing.T) {
	scale := []string{".spec.replicas", ".status.replicas", ".status.selector"}
	age := "Age date .metadata.creationTimestamp"
	want := map[string]shape{
		"Machine": {
			Names: []string{"machines", "machine", "mc"},
			Columns: []string{
				"Status string .status.currentStatus.phase", age, "Node string .metadata.labels.node",
				"ProviderID string .spec.providerID 1",
			},
			Status: true,
		},
		"MachineSet": {
			Names: []string{"machinesets", "machineset", "mcs"},
			Columns: []string{
				"Desired integer .spec.replicas", "Current integer .status.replicas",
				"Ready integer .status.readyReplicas", age,
			},
			Status:   true,
			Scale:    scale,
			Required: []string{".status.machineSetCondition[].status", ".status.machineSetCondition[].type"},
		},
		"MachineDeployment": {
			Names: []string{"machinedeployments", "machinedeployment", "mcd"},
			Columns: []string{
				"Ready integer .status.readyReplicas", "Desired integer .spec.replicas",
				"Up-to-date integer .status.updatedReplicas", "Available integer .status.availableReplicas", age,
			},
			Status: true,
			Scale:  scale,
			Required: []string{
				".spec.replacement.budgets[].max", // not a field of MCM
				".spec.template", ".status.conditions[].status", ".status.conditions[].type",
			},
		},
		"MachineClass": {
			Names: []string{"machineclasses", "machineclass", "mcc"},
			Columns: []string{ // MCM has none
				"Driver string .provider", "Size string .nodeTemplate.instanceType", "Zone string .nodeTemplate.zone", age,
				"CPU string .nodeTemplate.capacity.cpu 1", "Memory string .nodeTemplate.capacity.memory 1", "Secret string .secretRef.name 1",
			},
			Required: []string{
				".nodeTemplate.capacity", ".nodeTemplate.instanceType", ".nodeTemplate.region", ".nodeTemplate.zone",
				".providerSpec",
			},
		},
	}
	got := map[string]shape{}
	for kind, crd := range crdsLikeMCM(t) {
		got[kind] = shapeOf(crd)
		if v := crd.Spec.Versions; len(v) != 1 || v[0].Name != "v1alpha1" || !v[0].Served || !v[0].Storage {
			t.Errorf("%s: want v1alpha1 as the only version, served and stored", kind)
		}
		if crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy != apiextensionsv1.NoneConverter {
			t.Errorf("%s has a conversion webhook", kind)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("shapes of the CRDs (-want +got):\n%s", diff)
	}
}

// TestCRD_OfVirtualMachine checks the columns that kubectl shows, and the required fields.
func TestCRD_OfVirtualMachine(t *testing.T) {
	want := shape{
		Names: []string{"virtualmachines", "virtualmachine", "mwvm"},
		Columns: []string{
			"Phase string .status.phase", `Ready string .status.conditions[?(@.type=="Ready")].status`,
			"Node string .status.nodeName", "Address string .status.addresses[0]",
			"Age date .metadata.creationTimestamp", "Pod string .status.activePodName 1",
			"CPUs integer .spec.cpus 1", "Memory string .spec.memory 1", "UUID string .spec.uuid 1",
		},
		Status: true,
	}
	crd := readCRDs(t)["VirtualMachine"]
	if crd == nil {
		t.Fatal("found no CRD of VirtualMachines")
	}
	got := shapeOf(crd)
	if !slices.Contains(got.Required, ".spec") || slices.Contains(got.Required, ".status") {
		t.Errorf("got required fields %v; want .spec, but not .status", got.Required)
	}
	got.Required = nil // tests with the API server cover the required fields below spec
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("shape (-want +got):\n%s", diff)
	}
}

// Roles in a namespace are sufficient for all kinds that we serve.
func TestCRD_IsNamespaced(t *testing.T) {
	for kind, crd := range readCRDs(t) {
		if crd.Spec.Scope != apiextensionsv1.NamespaceScoped {
			t.Errorf("%s: scope %s", kind, crd.Spec.Scope)
		}
	}
}

// TestCRD_CategoriesAreNotNames checks the categories, and that no kind has the name of one: kubectl looks for
// categories first, so "kubectl delete machines NAME" would concern all kinds of a category "machines".
func TestCRD_CategoriesAreNotNames(t *testing.T) {
	all := readCRDs(t)
	maps.Copy(all, legacyCRDs(t))
	names := map[string]string{}
	for kind, crd := range all {
		of := crd.Spec.Names
		for _, name := range append([]string{of.Plural, of.Singular}, of.ShortNames...) {
			if other := names[name]; other != "" {
				t.Errorf("%s and %s have the name %s", kind, other, name)
			}
			names[name] = kind
		}
	}
	want := map[string][]string{
		"machine.sapcloud.io":       {"mcm", "millwright"},
		"vm.metropolis.monogon.dev": {"millwright"},
		infrastructureGroup:         {"cluster-api", "millwright"},
	}
	for kind, crd := range all {
		if diff := cmp.Diff(want[crd.Spec.Group], crd.Spec.Names.Categories); diff != "" {
			t.Errorf("categories of %s (-want +got):\n%s", kind, diff)
		}
		for _, category := range crd.Spec.Names.Categories {
			if other := names[category]; other != "" {
				t.Errorf("%s is a category of %s, and a name of %s", category, kind, other)
			}
		}
	}
	for _, name := range []string{"vm", "vms", "vmi", "vmis"} {
		if kind := names[name]; kind != "" {
			t.Errorf("%s has the short name %s, which KubeVirt uses", kind, name)
		}
	}
}

// openValues are the values of fields whose schemas accept any text, as MCM's do.
var openValues = map[string][]string{
	"Machine .status.currentStatus.phase": {
		"Pending", "Available", "Running", "Terminating", "Unknown", "Failed", "CrashLoopBackOff", "InPlaceUpdating",
		"InPlaceUpdateSuccessful", "InPlaceUpdateFailed",
	},
	"Machine .status.lastOperation.state":                              {"Processing", "Failed", "Successful"},
	"Machine .status.lastOperation.type":                               {"Create", "Update", "InPlaceUpdate", "DrainNode", "HealthCheck", "Delete"},
	"MachineSet .status.machineSetCondition[].type":                    {"ReplicaFailure", "Frozen", "SelectorOverlap"},
	"MachineSet .status.machineSetCondition[].status":                  {"True", "False", "Unknown"},
	"MachineDeployment .spec.strategy.type":                            {"Recreate", "RollingUpdate", "InPlaceUpdate"},
	"MachineDeployment .spec.strategy.inPlaceUpdate.orchestrationType": {"Auto", "Manual"},
	"MachineDeployment .status.conditions[].status":                    {"True", "False", "Unknown"},
	"MachineDeployment .status.conditions[].type": {
		"Available", "Progressing", "ReplicaFailure", "Frozen", "SelectorOverlap", "SetReleased", "RollbackRefused",
	},
	"VirtualMachine .status.conditions": {
		"Ready", "Scheduled", "StorageLocking", "Migrating", "LiveMigratable", "HypervisorCurrent", "RestartNeeded", "Fenced", "DisksServed",
	},
}

// TestCRD_DescriptionsNameTheValues checks that "kubectl explain" names each value of a field that has a closed set of them.
func TestCRD_DescriptionsNameTheValues(t *testing.T) {
	found := 0
	for kind, crd := range readCRDs(t) {
		walk(schemaOf(crd), "", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			values, open := openValues[kind+" "+path]
			if open {
				found++
			}
			for _, value := range schema.Enum {
				values = append(values, strings.Trim(string(value.Raw), `"`))
			}
			for _, value := range values {
				if !strings.Contains(schema.Description, value) {
					t.Errorf("the description of %s %s does not name %s: %s", kind, path, value, schema.Description)
				}
			}
		})
	}
	if found != len(openValues) {
		t.Errorf("%d of the %d fields exist", found, len(openValues))
	}
}

func shapeOf(crd *apiextensionsv1.CustomResourceDefinition) shape {
	version := crd.Spec.Versions[0]
	s := shape{
		Names:    append([]string{crd.Spec.Names.Plural, crd.Spec.Names.Singular}, crd.Spec.Names.ShortNames...),
		Required: requiredFields(version.Schema.OpenAPIV3Schema),
	}
	for _, column := range version.AdditionalPrinterColumns {
		text := fmt.Sprintf("%s %s %s", column.Name, column.Type, column.JSONPath)
		if column.Priority != 0 {
			text += fmt.Sprintf(" %d", column.Priority)
		}
		s.Columns = append(s.Columns, text)
	}
	if sub := version.Subresources; sub != nil {
		s.Status = sub.Status != nil
		if sub.Scale != nil {
			s.Scale = []string{sub.Scale.SpecReplicasPath, sub.Scale.StatusReplicasPath, *sub.Scale.LabelSelectorPath}
		}
	}
	return s
}

// fromKubernetes are the last parts of paths at which a type of Kubernetes starts that has its own required fields.
var fromKubernetes = map[string]bool{
	"matchExpressions[]": true, // LabelSelectorRequirement
	"taints[]":           true, // Taint
	"configMap":          true, // ConfigMapNodeConfigSource
	"addresses[]":        true, // NodeAddress
}

func requiredFields(root *apiextensionsv1.JSONSchemaProps) []string {
	fields := map[string]bool{}
	add := func(path string, schema *apiextensionsv1.JSONSchemaProps) {
		if fromKubernetes[path[strings.LastIndex(path, ".")+1:]] || isNodeCondition(schema) {
			return
		}
		for _, name := range schema.Required {
			fields[path+"."+name] = true
		}
	}
	add("", root)
	walk(root, "", add)
	return slices.Sorted(maps.Keys(fields))
}

// isNodeCondition recognizes a corev1.NodeCondition, which has the same field name as our own conditions.
func isNodeCondition(schema *apiextensionsv1.JSONSchemaProps) bool {
	_, ok := schema.Properties["lastHeartbeatTime"]
	return ok
}
