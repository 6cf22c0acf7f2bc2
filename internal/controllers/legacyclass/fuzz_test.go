package legacyclass

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/absurd"
)

// FuzzReconcile checks that for any legacy object, users and Secrets, passes terminate and settle, that other
// MachineClasses do not change, that only the kind in references of users changes, and that messages are short.
func FuzzReconcile(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"spec":null}`, `{"spec":[]}`, `{"spec":{"ami":1}}`, `{"spec":{"ami":"a","amy":"b"}}`,
		`{"spec":{"secretRef":{"name":"user-data","namespace":"other"}}}`, `{"spec":{"secretRef":"user-data"}}`,
		`{"spec":{"ami":"a","tags":{"a":"b"},"secretRef":{"name":"user-data"}}}`,
		`{"metadata":{"annotations":{"machine.sapcloud.io/migrated":"present"}},"spec":{"ami":"a"}}`,
	} {
		f.Add([]byte(text), []byte(nil), false)
		f.Add([]byte(text), []byte(nil), true)
	}
	f.Add([]byte(`{"spec":{"`+strings.Repeat("x", 5000)+`":1}}`), []byte(nil), false)
	absurd.Seed(f, func(data []byte) { f.Add([]byte(`{"spec":{"ami":"a"}}`), data, false) })
	f.Fuzz(func(t *testing.T, raw, ofUsers []byte, taken bool) {
		object := parsed(raw)
		if object == nil {
			return // an API server would reject it
		}
		users := fleet()[1:]
		absurd.Objects(ofUsers, users...)
		theirs := &v1alpha1.MachineClass{ObjectMeta: named(key.Name), Provider: "theirs", ProviderSpec: runtime.RawExtension{Raw: []byte(`{"a":1}`)}}
		if taken {
			users = append(users, theirs)
		}
		w := newWorld(t, sim.New(sim.Config{}), users...)
		opts := w.controller.Options
		opts.Cache = shows{w.Client, object}
		w.controller = New(opts)
		before := kindless(w)
		for range 3 {
			absurd.Within("a pass", func() { _, _ = w.pass() }) // errors are allowed
		}
		writes := w.writes
		absurd.Within("a pass", func() { _, _ = w.pass() })
		if w.writes > writes+1 { // the object itself is not stored, so its mark is written again
			t.Errorf("%d writes, want the passes to settle", w.writes)
		}
		if diff := cmp.Diff(before, kindless(w)); diff != "" {
			t.Errorf("users changed (-before +after):\n%s", diff)
		}
		if taken {
			if now := get(w, key.Name, &v1alpha1.MachineClass{}); now.Provider != "theirs" || string(now.ProviderSpec.Raw) != `{"a":1}` {
				t.Errorf("the other class changed: %s %s", now.Provider, now.ProviderSpec.Raw)
			}
		}
		for _, event := range w.takeEvents() {
			if len(event) > maxMessage+100 {
				t.Errorf("event of %d bytes", len(event))
			}
		}
	})
}

// parsed returns a legacy object with the content of some JSON, or nil if an API server would reject it.
func parsed(raw []byte) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	if json.Unmarshal(raw, &object.Object) != nil || object.Object == nil {
		return nil
	}
	annotations, _, err := unstructured.NestedStringMap(object.Object, "metadata", "annotations")
	if err != nil {
		return nil
	}
	object.Object["metadata"] = map[string]any{}
	object.SetGroupVersionKind(legacy.SchemeGroupVersion.WithKind(legacy.AWS))
	object.SetNamespace(key.Namespace)
	object.SetName(key.Name)
	object.SetUID(types.UID("older"))
	object.SetAnnotations(annotations)
	return object
}

// kindless returns all users without what a migration changes: kinds of references and finalizers.
func kindless(w *world) map[string]client.Object {
	w.Helper()
	all := map[string]client.Object{}
	for name, object := range map[string]client.Object{
		"pool": &v1alpha1.MachineDeployment{}, "pool-1": &v1alpha1.MachineSet{}, "a": &v1alpha1.Machine{}, "b": &v1alpha1.Machine{},
		"stranger": &v1alpha1.Machine{}, "user-data": &corev1.Secret{},
	} {
		if w.Get(w.Context(), client.ObjectKey{Namespace: key.Namespace, Name: name}, object) != nil {
			continue // the object was being deleted and is removed
		}
		object.SetFinalizers(nil)
		object.SetResourceVersion("")
		for _, ref := range referencesOf(object) {
			if ref.Kind == legacy.AWS || ref.Kind == v1alpha1.MachineClassKind {
				ref.Kind = ""
			}
		}
		all[name] = object
	}
	return all
}
