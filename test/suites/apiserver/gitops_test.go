package apiserver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// pruned are the parts of a sync policy that decide whether objects are deleted.
type pruned struct {
	Prune, SelfHeal bool
}

// TestGitOps_ToolsReferToPool checks the objects of the tools, whose CRDs are not installed here: that they have no
// other fields than those below, which are in the tools' references, and that what they refer to exists.
func TestGitOps_ToolsReferToPool(t *testing.T) {
	t.Parallel()
	type reference struct{ APIVersion, Kind, Name, Namespace string }
	type metadata struct{ Name, Namespace string }
	var flux struct {
		APIVersion, Kind string
		Metadata         metadata
		Spec             struct {
			Interval, Timeout, Path, TargetNamespace string
			SourceRef                                struct{ Kind, Name string }
			Prune                                    bool
			HealthChecks                             []reference
			HealthCheckExprs                         []struct{ APIVersion, Kind, Current, Failed string }
		}
	}
	var argo struct {
		APIVersion, Kind string
		Metadata         metadata
		Spec             struct {
			Project           string
			Source            struct{ RepoURL, TargetRevision, Path string }
			Destination       struct{ Server, Namespace string }
			IgnoreDifferences []struct {
				Group, Kind  string
				JSONPointers []string
			}
			SyncPolicy struct {
				Automated   pruned
				SyncOptions []string
			}
		}
	}
	for name, into := range map[string]any{"flux/kustomization.yaml": &flux, "argocd/application.yaml": &argo} {
		if err := yaml.UnmarshalStrict(example(t, name), into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if got := flux.APIVersion + " " + flux.Kind; got != "kustomize.toolkit.fluxcd.io/v1 Kustomization" {
		t.Errorf("flux: %s", got)
	}
	if got := argo.APIVersion + " " + argo.Kind; got != "argoproj.io/v1alpha1 Application" {
		t.Errorf("argocd: %s", got)
	}
	for _, path := range []string{flux.Spec.Path, argo.Spec.Source.Path} {
		if strings.TrimPrefix(path, "./") != "examples/gitops/pool" {
			t.Errorf("it applies %s", path)
		}
	}
	if flux.Spec.Prune || argo.Spec.SyncPolicy.Automated.Prune {
		t.Error("a pool that is missing in the repository would be deleted")
	}
	pools := 0
	for _, object := range fixture.Objects(t, example(t, "pool/pool.yaml")) {
		if object.GetKind() != "MachineDeployment" {
			continue
		}
		pools++
		want := reference{object.GetAPIVersion(), object.GetKind(), object.GetName(), flux.Spec.TargetNamespace}
		if !slices.Contains(flux.Spec.HealthChecks, want) {
			t.Errorf("flux does not wait for %v", want)
		}
		if replicas, found, err := unstructured.NestedInt64(object.Object, "spec", "replicas"); !found || err != nil || replicas == 0 {
			t.Errorf("%s has %d replicas", object.GetName(), replicas)
		}
	}
	if checks := flux.Spec.HealthCheckExprs; pools == 0 || len(checks) != 1 || checks[0].Kind != "MachineDeployment" {
		t.Errorf("%d pools, and checks %v", pools, checks)
	}
	ignored := argo.Spec.IgnoreDifferences
	if len(ignored) != 1 || ignored[0].Group != v1alpha1.GroupName || ignored[0].Kind != "MachineDeployment" || !slices.Equal(ignored[0].JSONPointers, []string{"/spec/replicas"}) {
		t.Errorf("Argo CD ignores %v", ignored)
	}
	if options := argo.Spec.SyncPolicy.SyncOptions; !slices.Contains(options, "RespectIgnoreDifferences=true") {
		t.Errorf("Argo CD syncs with %v", options)
	}
}
