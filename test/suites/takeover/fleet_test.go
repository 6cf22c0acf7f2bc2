package takeover

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

func TestMain(m *testing.M) {
	program.Main()
	env.AtATime(atATime)
	env.Main(m)
}

// atATime is how many tests run concurrently, each in its own namespace. They mostly wait, so the number does not
// depend on that of CPUs.
const atATime = 8

// waitTimeout limits every wait. Eight concurrent managers on two busy CPUs took two minutes to settle.
const waitTimeout = env.WaitTimeout

// together runs tests concurrently, and in parallel with other tests.
func together(t *testing.T, tests map[string]func(*testing.T)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tests[name](t)
		})
	}
}

// recordings are the recorded MCM fleets by moment.
func recordings(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../../api/machine/v1alpha1/testdata/mcm/*.json")
	if err != nil || len(files) < 24 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	return files
}

var (
	timestamp   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	machineName = regexp.MustCompile(`\b(?:pool|scaled|inplace|nocap|broken)-[0-9a-f]{5}-[a-z0-9]{5}\b`)
	lastWrite   = regexp.MustCompile(`"(?:lastUpdateTime|creationTimestamp)": ?"([^"]+)"`)
)

// read reads the objects of a recording with current times. Nodes are cluster-scoped, so they and their Machines
// get the suffix, if any.
func read(t *testing.T, file, namespace, suffix string) []*unstructured.Unstructured {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	if suffix != "" {
		text = machineName.ReplaceAllString(text, "${0}-"+suffix)
	}
	var recorded time.Time
	for _, found := range lastWrite.FindAllStringSubmatch(text, -1) {
		if at, err := time.Parse(time.RFC3339, found[1]); err == nil && at.After(recorded) {
			recorded = at
		}
	}
	ago := time.Since(recorded).Truncate(time.Second)
	text = timestamp.ReplaceAllStringFunc(text, func(was string) string {
		at, err := time.Parse(time.RFC3339, was)
		if err != nil {
			return was
		}
		return at.Add(ago).Format(time.RFC3339)
	})
	list := &unstructured.UnstructuredList{}
	if err := json.Unmarshal([]byte(text), list); err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for i := range list.Items {
		object := &list.Items[i]
		if kind, _, _ := unstructured.NestedString(object.Object, "type"); kind == string(corev1.SecretTypeBootstrapToken) {
			continue // of a cluster that is gone
		}
		if object.GetNamespace() != "" {
			object.SetNamespace(namespace)
		}
		if _, refers := object.Object["secretRef"]; refers {
			must(t, unstructured.SetNestedField(object.Object, namespace, "secretRef", "namespace"))
		}
		objects = append(objects, object)
	}
	return objects
}

// order is the order in which objects are restored: owners first.
var order = []string{"Secret", "MachineClass", "Node", "MachineDeployment", "MachineSet", "Machine"}

// load restores the objects of a recording with their owners, status and deletions. It returns the UIDs by kind
// and name.
func load(t *testing.T, e *env.Env, file, suffix string) map[string]types.UID {
	t.Helper()
	objects := read(t, file, e.Namespace, suffix)
	uids := map[types.UID]types.UID{}
	names := map[string]types.UID{}
	for _, kind := range order {
		for _, object := range objects {
			if object.GetKind() == kind {
				restore(t, e, object.DeepCopy(), uids, names)
			}
		}
	}
	return names
}

func restore(t *testing.T, e *env.Env, object *unstructured.Unstructured, uids map[types.UID]types.UID, names map[string]types.UID) {
	t.Helper()
	was, deleted, status := object.GetUID(), object.GetDeletionTimestamp(), object.Object["status"]
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	owners := object.GetOwnerReferences()
	for i := range owners {
		owners[i].UID = uids[owners[i].UID]
	}
	object.SetOwnerReferences(owners)
	must(t, e.Client.Create(t.Context(), object))
	uids[was], names[object.GetKind()+" "+object.GetName()] = object.GetUID(), object.GetUID()
	if fields, ok := status.(map[string]any); ok {
		if _, counts := fields["observedGeneration"]; counts {
			fields["observedGeneration"] = object.GetGeneration() // MCM had observed all its generations
		}
		object.Object["status"] = fields
		must(t, e.Client.Status().Update(t.Context(), object))
	}
	if deleted != nil {
		must(t, e.Client.Delete(t.Context(), object))
	}
	if object.GetKind() == "Node" {
		t.Cleanup(func() { dropNode(t, e, object.GetName()) })
	}
}

// dropNode removes a node, which is not in the test's namespace, if it still exists.
func dropNode(t *testing.T, e *env.Env, name string) {
	node := &corev1.Node{}
	node.Name = name
	ctx := context.Background() // the test's own context is canceled
	none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := client.IgnoreNotFound(e.Client.Patch(ctx, node, none)); err != nil {
		t.Error(err)
	}
	if err := client.IgnoreNotFound(e.Client.Delete(ctx, node)); err != nil {
		t.Error(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// of returns the name of the MachineDeployment of a Machine or MachineSet.
func of(name string) string {
	deployment, _, _ := strings.Cut(name, "-")
	return deployment
}
