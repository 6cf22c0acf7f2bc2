package release

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// requiredVariables are those of the templates for virtual machines with an image of one's own.
var requiredVariables = []string{
	"CONTROL_PLANE_ENDPOINT_HOST=10.0.0.10", "MILLWRIGHT_IMAGE_URL=https://images.example.com/node.qcow2",
	"MILLWRIGHT_IMAGE_CHECKSUM=sha256:" + strings.Repeat("0", 64),
}

// flavors are the templates with their required variables. The default template has no name.
var flavors = map[string][]string{"": requiredVariables, "topology": requiredVariables, "development": nil, "sim": nil}

// TestTemplates_AreValid (K4) checks that an API server with the kinds of Cluster API and its kubeadm providers
// accepts the rendered templates with strict validation.
func TestTemplates_AreValid(t *testing.T) {
	tier.All(t)
	p := newPlace(t)
	e := env.New(t)
	installCore(t, e.Cluster)
	for _, contract := range contracts {
		for flavor, variables := range flavors {
			t.Run(contract+"/"+flavor, func(t *testing.T) {
				// A name that YAML would parse as a number without quotes.
				text := p.clusterctl(contract, variables, "generate", "cluster", "1234", "--infrastructure", "millwright:"+release, "--flavor", flavor,
					"--target-namespace", e.Namespace, "--kubernetes-version", "v1.37.2", "--control-plane-machine-count", "3", "--worker-machine-count", "5")
				rendered := fixture.Objects(t, text)
				there := map[string]bool{}
				for _, object := range rendered {
					there[object.GetKind()+" "+object.GetName()] = true
				}
				for _, object := range rendered {
					// Clusters of a class share it and its templates.
					shared := flavor == "topology" && strings.HasPrefix(object.GetName(), "millwright")
					if object.GetNamespace() != e.Namespace || !shared && !strings.HasPrefix(object.GetName(), "1234") {
						t.Errorf("%s %s is in namespace %s", object.GetKind(), object.GetName(), object.GetNamespace())
					}
					refers(t, object.Object, there)
					if err := e.Client.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
						t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
					}
				}
				if replicas := workerReplicas(t, rendered, flavor); replicas != 5 {
					t.Errorf("%d workers", replicas)
				}
			})
		}
	}
}

// workerReplicas returns the number of workers, which a Cluster of a class contains itself.
func workerReplicas(t *testing.T, rendered []*unstructured.Unstructured, flavor string) int64 {
	t.Helper()
	var pool map[string]any
	if flavor == "topology" {
		pools, _, _ := unstructured.NestedSlice(only(t, rendered, "Cluster").Object, "spec", "topology", "workers", "machineDeployments")
		if len(pools) != 1 {
			t.Fatalf("the Cluster has the pools %v", pools)
		}
		pool = pools[0].(map[string]any)
	} else {
		pool = only(t, rendered, "MachineDeployment").Object["spec"].(map[string]any)
	}
	replicas, _, _ := unstructured.NestedInt64(pool, "replicas")
	return replicas
}

// refers checks that every object that an object refers to is part of the template.
func refers(t *testing.T, value any, rendered map[string]bool) {
	t.Helper()
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			refers(t, element, rendered)
		}
	case map[string]any:
		_, whole := value["metadata"]
		name, named := value["name"].(string)
		if kind, ok := value["kind"].(string); ok && named && !whole && !rendered[kind+" "+name] {
			t.Errorf("%s %s is referred to, and is not there", kind, name)
		}
		if name, ok := value["dataSecretName"]; ok && !rendered[fmt.Sprint("Secret ", name)] {
			t.Errorf("Secret %v is referred to, and is not there", name)
		}
		for _, element := range value {
			refers(t, element, rendered)
		}
	}
}

// TestTemplates_AreAcceptedByDriver checks that the driver accepts the VMs of the templates.
func TestTemplates_AreAcceptedByDriver(t *testing.T) {
	tier.All(t)
	for _, flavor := range []string{"", "development"} {
		t.Run("flavor "+flavor, func(t *testing.T) { driverTakes(t, flavor) })
	}
}

func driverTakes(t *testing.T, flavor string) {
	p := newPlace(t)
	e := env.New(t)
	infrastructure, err := vm.NewClient(e.Admin)
	if err != nil {
		t.Fatal(err)
	}
	d := vm.New(vm.Options{Client: infrastructure, Installation: "test"})
	text := p.clusterctl(contract(), append(flavors[flavor], "MILLWRIGHT_VM_POOL="+e.Namespace), "generate", "cluster", "c1", "--infrastructure", "millwright:"+release, "--flavor", flavor,
		"--target-namespace", e.Namespace, "--kubernetes-version", "v1.37.2")
	asked := 0
	for _, object := range fixture.Objects(t, text) {
		if object.GetKind() != infrav1.MillwrightMachineTemplateKind {
			continue
		}
		asked++
		spec := decode[infrav1.MillwrightMachineTemplate](t, object).Spec.Template.Spec
		machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: object.GetName() + "-1", Namespace: e.Namespace}}
		class := &v1alpha1.MachineClass{Provider: spec.Driver, ProviderSpec: *spec.ProviderSpec}
		_, err := d.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: machine, MachineClass: class, Secret: &corev1.Secret{}})
		if !status.Is(err, codes.NotFound) {
			t.Errorf("%s: %v", object.GetName(), err)
		}
	}
	if asked != 2 {
		t.Errorf("%d templates of machines", asked)
	}
}

// TestTemplates_VariablesAreDocumented checks that the table in the documentation contains the variables that clusterctl
// finds in the files, with the same defaults.
func TestTemplates_VariablesAreDocumented(t *testing.T) {
	tier.All(t)
	p := newPlace(t)
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "get-started", "clusterctl.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| (?:`(.*?)` )?\\|").FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = row[2]
	}
	// Set by flags and the argument of clusterctl.
	for _, name := range []string{"CLUSTER_NAME", "NAMESPACE", "KUBERNETES_VERSION", "CONTROL_PLANE_MACHINE_COUNT", "WORKER_MACHINE_COUNT"} {
		documented[name] = ""
	}
	files := []string{"infrastructure-components.yaml", "cluster-template.yaml", "cluster-template-development.yaml", "cluster-template-sim.yaml", "cluster-template-topology.yaml", "clusterclass-millwright.yaml"}
	used := map[string]string{}
	for _, contract := range []string{"v1beta1", "v1beta2"} {
		for _, file := range files {
			for _, variable := range regexp.MustCompile(`\$\{([A-Z_]+)(?::=([^}]*))?\}`).FindAllStringSubmatch(string(p.read(contract, file)), -1) {
				name, value := variable[1], variable[2]
				if before, again := used[name]; again && before != value && file != "cluster-template-sim.yaml" {
					t.Errorf("%s is by default %q and %q", name, before, value)
				}
				if _, again := used[name]; !again {
					used[name] = value
				}
			}
		}
	}
	if diff := cmp.Diff(used, documented); diff != "" {
		t.Errorf("variables (-used +documented):\n%s", diff)
	}
}

// installCore installs the kinds of Cluster API and its kubeadm providers.
func installCore(t *testing.T, c *env.Cluster) {
	t.Helper()
	source := moduleDir(t)
	for _, dir := range []string{coreFile(t, "crd"), filepath.Join(source, "bootstrap/kubeadm/config/crd/bases"), filepath.Join(source, "controlplane/kubeadm/config/crd/bases")} {
		if err := controlplane.InstallCRDs(t.Context(), c.Admin, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
}

// moduleDir returns the directory with the source code of Cluster API.
func moduleDir(t *testing.T) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api")
	list.Dir = filepath.Join(root(t), "test", "suites", "capi", version)
	out, err := list.Output()
	if err != nil {
		t.Fatalf("finding the source of Cluster API: %v", err)
	}
	return strings.TrimSpace(string(out))
}
