package apiserver

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// example reads a file of examples/gitops.
func example(t *testing.T, name string) []byte {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "examples", "gitops", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestGitOps_ReplicasOfPool applies the example as Flux does, and checks what happens to the replicas if they are
// removed from the manifest: without preparation, the pool loses all machines; if another manager shares the field,
// as docs/tasks/gitops.md describes, the pool keeps them.
func TestGitOps_ReplicasOfPool(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		shared bool
		want   int32
	}{
		"removed":              {false, 0},
		"shared, then removed": {true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := env.New(t)
			apply := func(manager string, object *unstructured.Unstructured) {
				t.Helper()
				object = object.DeepCopy()
				object.SetNamespace(e.Namespace)
				if err := e.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manager)); err != nil {
					t.Fatalf("applying %s: %v", object.GetKind(), err)
				}
			}
			objects := fixture.Objects(t, example(t, "pool/pool.yaml"))
			for _, object := range objects {
				apply("kustomize-controller", object)
			}
			pool := objects[slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "MachineDeployment" })]
			if tc.shared {
				shared := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": pool.GetAPIVersion(), "kind": pool.GetKind(), "metadata": map[string]any{"name": pool.GetName()},
					"spec": map[string]any{"replicas": int64(3)},
				}}
				apply("replicas", shared)
			}
			unstructured.RemoveNestedField(pool.Object, "spec", "replicas")
			apply("kustomize-controller", pool)

			deployment := &v1alpha1.MachineDeployment{}
			if err := e.Client.Get(t.Context(), client.ObjectKey{Namespace: e.Namespace, Name: "pool"}, deployment); err != nil {
				t.Fatal(err)
			}
			if deployment.Spec.Replicas != tc.want {
				t.Errorf("the pool has %d replicas, want %d", deployment.Spec.Replicas, tc.want)
			}
		})
	}
}

// reference names an object that a tool waits for.
type reference struct{ APIVersion, Kind, Name, Namespace string }

// kustomization has all fields that the object of Flux may have. They are in Flux' reference; its CRDs are not
// installed here.
type kustomization struct {
	APIVersion, Kind string
	Metadata         struct{ Name, Namespace string }
	Spec             struct {
		Interval, Timeout, Path, TargetNamespace string
		SourceRef                                struct{ Kind, Name string }
		Prune                                    bool
		HealthChecks                             []reference
		HealthCheckExprs                         []struct{ APIVersion, Kind, Current, Failed string }
	}
}

// application has all fields that the object of Argo CD may have.
type application struct {
	APIVersion, Kind string
	Metadata         struct{ Name, Namespace string }
	Spec             struct {
		Project           string
		Source            struct{ RepoURL, TargetRevision, Path string }
		Destination       struct{ Server, Namespace string }
		IgnoreDifferences []ignored
		SyncPolicy        struct {
			Automated   struct{ Prune, SelfHeal bool }
			SyncOptions []string
		}
	}
}

// ignored are fields that Argo CD leaves to others.
type ignored struct {
	Group, Kind  string
	JSONPointers []string
}

// pools returns references to the MachineDeployments of the example in a namespace, and checks that they have
// replicas.
func pools(t *testing.T, namespace string) (found []reference) {
	t.Helper()
	for _, object := range fixture.Objects(t, example(t, "pool/pool.yaml")) {
		if object.GetKind() != "MachineDeployment" {
			continue
		}
		found = append(found, reference{object.GetAPIVersion(), object.GetKind(), object.GetName(), namespace})
		pool := &v1alpha1.MachineDeployment{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pool); err != nil || pool.Spec.Replicas == 0 {
			t.Errorf("%s has %d replicas, %v", object.GetName(), pool.Spec.Replicas, err)
		}
	}
	return found
}

// TestGitOps_FluxWaitsForPools checks that the Kustomization has only known fields, and waits for the existing pools.
// A test of the chart evaluates its expressions.
func TestGitOps_FluxWaitsForPools(t *testing.T) {
	t.Parallel()
	var flux kustomization
	if err := yaml.UnmarshalStrict(example(t, "flux/kustomization.yaml"), &flux); err != nil {
		t.Fatal(err)
	}
	if got := flux.APIVersion + " " + flux.Kind; got != "kustomize.toolkit.fluxcd.io/v1 Kustomization" {
		t.Errorf("it is a %s", got)
	}
	if flux.Spec.Path != "./examples/gitops/pool" || flux.Spec.Prune {
		t.Errorf("it applies %s and deletes pools that are missing there: %t", flux.Spec.Path, flux.Spec.Prune)
	}
	if diff := cmp.Diff(pools(t, flux.Spec.TargetNamespace), flux.Spec.HealthChecks); diff != "" {
		t.Errorf("pools (-existing +awaited):\n%s", diff)
	}
	if checks := flux.Spec.HealthCheckExprs; len(checks) != 1 || checks[0].Kind != "MachineDeployment" {
		t.Errorf("it has the checks %v", checks)
	}
}

// TestGitOps_ArgoCDLeavesReplicas checks that the Application has only known fields, and leaves replicas to an
// autoscaler.
func TestGitOps_ArgoCDLeavesReplicas(t *testing.T) {
	t.Parallel()
	var argo application
	if err := yaml.UnmarshalStrict(example(t, "argocd/application.yaml"), &argo); err != nil {
		t.Fatal(err)
	}
	if got := argo.APIVersion + " " + argo.Kind; got != "argoproj.io/v1alpha1 Application" {
		t.Errorf("it is a %s", got)
	}
	if argo.Spec.Source.Path != "examples/gitops/pool" || argo.Spec.SyncPolicy.Automated.Prune {
		t.Errorf("it applies %s and deletes pools that are missing there: %t", argo.Spec.Source.Path, argo.Spec.SyncPolicy.Automated.Prune)
	}
	want := []ignored{{v1alpha1.GroupName, "MachineDeployment", []string{"/spec/replicas"}}}
	if diff := cmp.Diff(want, argo.Spec.IgnoreDifferences); diff != "" {
		t.Errorf("ignored differences (-want +got):\n%s", diff)
	}
	if options := argo.Spec.SyncPolicy.SyncOptions; !slices.Contains(options, "RespectIgnoreDifferences=true") {
		t.Errorf("it syncs with %v", options)
	}
}
