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

// atATime is how many tests run at the same time, each in a namespace of its own. They wait most of the
// time, so the number of processors says nothing about how many may.
const atATime = 8

// waitTimeout bounds every wait. Eight managers at once, on two processors that forty other
// processes want, took two minutes to come to rest.
const waitTimeout = env.WaitTimeout

// together runs tests at the same time, and with those of other tests.
func together(t *testing.T, tests map[string]func(*testing.T)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tests[name](t)
		})
	}
}

// recordings are the fleets that MCM left behind, by the moment.
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

// read reads the objects of a recording as if it were of now. Nodes are the cluster's, so
// that machines, of which they have the names, get the suffix, if there is one.
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

// order is the one in which objects are restored: owners first.
var order = []string{"Secret", "MachineClass", "Node", "MachineDeployment", "MachineSet", "Machine"}

// load restores the objects of a recording, with the owners, the status and the deletions
// that they had. It returns the UIDs by kind and name.
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

// dropNode removes a node, which is not in the test's namespace, if it is still there.
func dropNode(t *testing.T, e *env.Env, name string) {
	node := &corev1.Node{}
	node.Name = name
	ctx := context.Background() // the test's own has ended
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

// of tells the deployment of a machine or set by its name.
func of(name string) string {
	deployment, _, _ := strings.Cut(name, "-")
	return deployment
}
