package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/resource"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// FuzzRoundTrip fills a VirtualMachine with random values and checks that JSON and a deep copy preserve all of
// them.
func FuzzRoundTrip(f *testing.F) {
	for seed := range int64(25) {
		f.Add(seed)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		f.Fatal(err)
	}
	funcs := fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, ourFuncs)
	f.Fuzz(func(t *testing.T, seed int64) {
		vm := &v1alpha1.VirtualMachine{}
		fuzzer.FuzzerFor(funcs, rand.NewSource(seed), serializer.NewCodecFactory(scheme)).Fill(vm)
		if diff := cmp.Diff(vm, vm.DeepCopy()); diff != "" {
			t.Errorf("the copy differs (-original +copy):\n%s", diff)
		}
		raw, err := json.Marshal(vm)
		if err != nil {
			t.Fatal(err)
		}
		read := &v1alpha1.VirtualMachine{}
		if err := json.Unmarshal(raw, read); err != nil {
			t.Fatal(err)
		}
		// JSON does not distinguish an empty list from an absent one where both are omitted.
		if diff := cmp.Diff(vm, read, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("JSON lost something (-before +after):\n%s", diff)
		}
	})
}

// ourFuncs fills the types whose values JSON does not preserve exactly.
func ourFuncs(serializer.CodecFactory) []any {
	return []any{
		func(q *resource.Quantity, c randfill.Continue) { *q = resource.MustParse(fmt.Sprint(c.Int31())) },
		// Kind and version follow from the Go type.
		func(meta *metav1.TypeMeta, _ randfill.Continue) { *meta = metav1.TypeMeta{} },
	}
}

// TestVirtualMachine_DecodesFieldsOfMetropolis checks the names of the fields of the original definition.
func TestVirtualMachine_DecodesFieldsOfMetropolis(t *testing.T) {
	const manifest = `{
		"apiVersion": "vm.metropolis.monogon.dev/v1alpha1",
		"kind": "VirtualMachine",
		"metadata": {"name": "a", "namespace": "b"},
		"spec": {
			"initialImage": {"url": "https://example.com/disk.img"},
			"hypervisorImage": "example.com/hypervisor:1",
			"resources": {"limits": {"cpu": "2"}},
			"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"storageClassName": "fast"}},
			"vmIPs": ["192.0.2.1/32"],
			"migrateStrategy": "Cold",
			"mode": "Pause"
		},
		"status": {"phase": "Lost", "activePodName": "p", "volumeClaimName": "c"}
	}`
	var written, rewritten map[string]any
	vm := &v1alpha1.VirtualMachine{}
	for _, target := range []any{vm, &written} {
		if err := json.Unmarshal([]byte(manifest), target); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := json.Marshal(vm)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &rewritten); err != nil {
		t.Fatal(err)
	}
	// The types of Kubernetes encode some empty fields, which the comparison ignores.
	if diff := cmp.Diff(written, rewritten, cmpopts.IgnoreMapEntries(isEmpty)); diff != "" {
		t.Errorf("after reading and writing (-before +after):\n%s", diff)
	}
}

func isEmpty(_ string, value any) bool {
	object, ok := value.(map[string]any)
	return value == nil || ok && len(object) == 0
}
