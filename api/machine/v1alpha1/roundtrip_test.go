package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/resource"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// FuzzRoundTrip fills each kind with random values and checks that JSON preserves all of them, and that a deep
// copy is equal and shares no memory.
func FuzzRoundTrip(f *testing.F) {
	for seed := range int64(25) {
		f.Add(seed)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		f.Fatal(err)
	}
	kinds := []runtime.Object{
		&v1alpha1.Machine{}, &v1alpha1.MachineSet{}, &v1alpha1.MachineDeployment{}, &v1alpha1.MachineClass{},
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		fill := filler(scheme, seed)
		for _, kind := range kinds {
			obj := kind.DeepCopyObject()
			fill.Fill(obj)
			checkJSON(t, obj)
			checkDeepCopy(t, obj)
		}
	})
}

func checkJSON(t *testing.T, obj runtime.Object) {
	t.Helper()
	raw := encode(t, obj)
	read := reflect.New(reflect.TypeOf(obj).Elem()).Interface()
	if err := json.Unmarshal(raw, read); err != nil {
		t.Fatal(err)
	}
	// JSON does not distinguish an empty list from an absent one where both are omitted.
	if diff := cmp.Diff(obj, read, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%T lost something in JSON (-before +after):\n%s", obj, diff)
	}
}

// checkDeepCopy overwrites the copy and checks that the original does not change.
func checkDeepCopy(t *testing.T, obj runtime.Object) {
	t.Helper()
	before := encode(t, obj)
	dup := obj.DeepCopyObject()
	if diff := cmp.Diff(obj, dup); diff != "" {
		t.Errorf("copy of %T differs (-original +copy):\n%s", obj, diff)
	}
	overwrite(reflect.ValueOf(dup))
	if diff := cmp.Diff(string(before), string(encode(t, obj))); diff != "" {
		t.Errorf("a change of a copy of %T reached the original (-before +after):\n%s", obj, diff)
	}
}

// overwrite clears everything reachable through pointers, slices and maps.
func overwrite(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			overwrite(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			overwrite(v.Index(i))
		}
	case reflect.Map:
		v.Clear()
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				overwrite(v.Field(i))
			}
		}
	}
	if v.CanSet() {
		v.SetZero()
	}
}

func filler(scheme *runtime.Scheme, seed int64) *randfill.Filler {
	funcs := fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, ourFuncs)
	return fuzzer.FuzzerFor(funcs, rand.NewSource(seed), serializer.NewCodecFactory(scheme))
}

// ourFuncs fills the types whose values JSON does not preserve exactly.
func ourFuncs(serializer.CodecFactory) []any {
	return []any{
		func(q *resource.Quantity, c randfill.Continue) {
			*q = resource.MustParse(fmt.Sprint(c.Int31()))
		},
		func(i *intstr.IntOrString, c randfill.Continue) {
			*i = intstr.FromInt32(c.Int31())
			if c.Bool() {
				*i = intstr.FromString(fmt.Sprintf("%d%%", c.Intn(100)))
			}
		},
		func(raw *runtime.RawExtension, c randfill.Continue) {
			raw.Raw = fmt.Appendf(nil, `{"size":%d}`, c.Int31())
		},
		// A configuration without any field is absent after decoding: its fields are inlined.
		func(spec *v1alpha1.MachineSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			if c := spec.MachineConfiguration; c != nil && *c == (v1alpha1.MachineConfiguration{}) {
				spec.MachineConfiguration = nil
			}
		},
		// JSON cannot represent a pointer to nil.
		func(status *v1alpha1.MachineSetStatus, c randfill.Continue) {
			c.FillNoCustom(status)
			if status.FailedMachines != nil && *status.FailedMachines == nil {
				status.FailedMachines = nil
			}
		},
		// Kind and version follow from the Go type.
		func(meta *metav1.TypeMeta, _ randfill.Continue) { *meta = metav1.TypeMeta{} },
	}
}
