package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/millwright-dev/millwright/test/support/fixture"
)

// kustomized returns the objects of a directory of config/machine with components and an image.
func kustomized(t *testing.T, directory string, components ...string) []*unstructured.Unstructured {
	t.Helper()
	scratch := t.TempDir()
	from, err := filepath.Rel(scratch, place(t, "config/machine"))
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources:\n- %s/%s\nimages:\n- {name: millwright, newName: registry.example.com/millwright, newTag: v0.1.0}\n- {name: millwright-driver, newName: registry.example.com/driver, newTag: v0.2.0}\n", from, directory)
	if len(components) > 0 {
		text += "components:\n"
	}
	for _, component := range components {
		text += fmt.Sprintf("- %s/%s\n", from, component)
	}
	if err := os.WriteFile(filepath.Join(scratch, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone
	rendered, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), scratch)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := rendered.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return fixture.Objects(t, manifests)
}

// optional contains the components and the values of what is not installed by default.
var optional = []string{"flow-control", "monitoring", "network-policy", "policies", "host-policies"}

func with(mode string, more values) values {
	of := values{
		"mode": mode, "image": values{"repository": "registry.example.com/millwright"},
		"flowSchema": values{"enabled": true}, "serviceMonitor": values{"enabled": true}, "networkPolicy": values{"enabled": true},
		"policies": values{"machines": true, "hosts": true},
	}
	for key, value := range more {
		of[key] = value
	}
	return of
}

// plugins contains the values for drivers of other processes, by component.
func plugins() map[string]values {
	return map[string]values{
		"driver-sidecar": {"driverSidecar": values{"image": values{"repository": "registry.example.com/driver", "tag": "v0.2.0"}}},
		"driver-network": {"driverNetwork": values{"tlsSecret": "machine-controller-drivers"}},
	}
}

// TestChart_MatchesKustomize checks that the chart and the manifests for kustomize contain the same objects.
func TestChart_MatchesKustomize(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"one-pod", "two-deployments", "whole"} {
		target := map[string]string{"one-pod": "target", "two-deployments": "target-two-deployments", "whole": "target"}[mode]
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			control, nodes := kustomized(t, mode, optional...), kustomized(t, target)
			t.Run("one cluster", func(t *testing.T) {
				same(t, append(control, nodes...), charted(t, namespace, with(mode, nil)))
			})
			t.Run("warnings", func(t *testing.T) {
				warned := kustomized(t, mode, append(optional[:len(optional):len(optional)], "warnings/"+mode)...)
				same(t, append(warned, nodes...), charted(t, namespace, with(mode, values{"warnings": values{"tlsSecret": "machine-controller-webhook"}})))
			})
			t.Run("the target", func(t *testing.T) {
				same(t, nodes, charted(t, namespace, values{"mode": target}))
			})
			t.Run("another target", func(t *testing.T) {
				components := append([]string{"target-kubeconfig"}, optional...)
				if mode == "one-pod" {
					components = append(components, "target-kubeconfig/sidecar")
				}
				elsewhere := with(mode, values{"target": values{"kubeconfigSecret": "machine-controller-manager-target"}})
				same(t, kustomized(t, mode, components...), charted(t, namespace, elsewhere))
				t.Run("drivers", func(t *testing.T) {
					for directory, driver := range plugins() {
						elsewhere["driver"] = ""
						maps.Copy(elsewhere, driver)
						same(t, kustomized(t, mode, append(components, directory+"/"+mode)...), charted(t, namespace, elsewhere))
						maps.DeleteFunc(elsewhere, func(key string, _ any) bool { _, of := driver[key]; return of })
					}
				})
			})
		})
	}
}

// TestChart_VMControllerMatchesKustomize checks the same for config/vm.
func TestChart_VMControllerMatchesKustomize(t *testing.T) {
	t.Parallel()
	of := func(more values) values {
		of := values{"hypervisorImage": values{"repository": "millwright-hypervisor", "tag": "latest"}}
		maps.Copy(of, more)
		return with("vm-controller", values{"vmController": of})
	}
	components := []string{"../vm/monitoring", "../vm/network-policy", "policies"}
	same(t, kustomized(t, "../vm/base", components...), charted(t, namespace, of(values{"namespaces": []any{"virtual-machines"}})))
	same(t, kustomized(t, "../vm/base", append(components, "../vm/all-namespaces")...), charted(t, namespace, of(values{"allNamespaces": true})))
}

// TestChart_LoadBalancerMatchesKustomize checks the same for config/load-balancer.
func TestChart_LoadBalancerMatchesKustomize(t *testing.T) {
	t.Parallel()
	of := func(more values) values {
		of := values{"host": "lb.example.com"}
		maps.Copy(of, more)
		return with("load-balancer", values{"loadBalancer": of})
	}
	base := "../load-balancer/base"
	components := []string{"../load-balancer/monitoring", "../load-balancer/network-policy", "policies", "host-policies"}
	same(t, hosted(t, kustomized(t, base, components...)), charted(t, namespace, of(nil)))
	same(t, hosted(t, kustomized(t, base, append(components, "../load-balancer/one-namespace")...)), charted(t, namespace, of(values{"namespace": "clusters"})))
	same(t, hosted(t, kustomized(t, base, "../load-balancer/node-port")), charted(t, namespace, values{
		"mode": "load-balancer", "image": values{"repository": "registry.example.com/millwright"},
		"loadBalancer": values{"host": "lb.example.com", "firstPort": 30060, "service": values{"type": "NodePort"}},
	}))
}

// hosted sets the host of the load balancer, which is required.
func hosted(t *testing.T, all []*unstructured.Unstructured) []*unstructured.Unstructured {
	t.Helper()
	for _, object := range all {
		containers, found, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		if !found {
			continue
		}
		args := containers[0].(map[string]any)["args"].([]any)
		if args[0] != "--host=NAME_OR_ADDRESS_OF_THE_SERVICE" {
			t.Errorf("the first argument is %v", args[0])
		}
		args[0] = "--host=lb.example.com"
		if err := unstructured.SetNestedSlice(object.Object, containers, "spec", "template", "spec", "containers"); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestChart_HasGeneratedCRDs checks that the chart contains the generated CRDs.
func TestChart_HasGeneratedCRDs(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, crd := range load(t).CRDObjects() {
		text.WriteString("---\n" + string(crd.File.Data))
	}
	var want []*unstructured.Unstructured
	for _, object := range append(kustomized(t, "base"), kustomized(t, "../vm/base")...) {
		if object.GetKind() == "CustomResourceDefinition" {
			want = append(want, object)
		}
	}
	if diff := cmp.Diff(byName(want), byName(fixture.Objects(t, []byte(text.String())))); diff != "" || len(want) != 5 {
		t.Errorf("%d definitions; make generate copies them (-generated +chart):\n%s", len(want), diff)
	}
}

// same compares the objects of kustomize and of the chart, ignoring what is specific to Helm.
func same(t *testing.T, kustomized, charted []*unstructured.Unstructured) {
	t.Helper()
	if len(charted) == 0 {
		t.Fatal("the chart has no objects")
	}
	if diff := cmp.Diff(byName(normal(kustomized)), byName(normal(charted))); diff != "" {
		t.Errorf("(-kustomize +chart):\n%s", diff)
	}
}

// normal removes intended differences. Helm does not create the Namespace of its release and keeps CRDs separate,
// it labels objects, and it sets a pull policy for images. Names that installations share end with their
// namespace.
func normal(all []*unstructured.Unstructured) []*unstructured.Unstructured {
	var kept []*unstructured.Unstructured
	for _, object := range all {
		switch object.GetKind() {
		case "Namespace", "CustomResourceDefinition":
			continue
		}
		object = object.DeepCopy()
		object.SetName(strings.TrimSuffix(object.GetName(), "-"+namespace))
		for _, path := range [][]string{{"roleRef", "name"}, {"spec", "priorityLevelConfiguration", "name"}, {"spec", "policyName"}} {
			if name, found, _ := unstructured.NestedString(object.Object, path...); found {
				unstructured.SetNestedField(object.Object, strings.TrimSuffix(name, "-"+namespace), path...)
			}
		}
		labels := object.GetLabels()
		for _, label := range []string{"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
			delete(labels, label)
		}
		if len(labels) == 0 {
			labels = nil
		}
		object.SetLabels(labels)
		containers, found, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		for _, container := range containers {
			delete(container.(map[string]any), "imagePullPolicy")
		}
		if found {
			unstructured.SetNestedSlice(object.Object, containers, "spec", "template", "spec", "containers")
		}
		kept = append(kept, object)
	}
	return kept
}

// byName returns the contents of objects by name.
func byName(all []*unstructured.Unstructured) map[string]any {
	found := map[string]any{}
	for _, object := range all {
		found[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = object.Object
	}
	return found
}
