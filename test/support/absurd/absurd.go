// Package absurd sets unusual values in objects for fuzz tests.
//
// A fuzz test starts with valid objects, so that a controller gets far with them, and changes a few fields as the
// fuzz data determine. The fields are found by reflection, so new fields are included automatically.
package absurd

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// maxChanges limits the changes of one run. An object with unusual values in every field would be rejected at the
// first one.
const maxChanges = 8

// Distort changes fields of the values, which are pointers, as data determine, until data or eight changes are
// used up. Empty data change nothing. Equal data make equal changes.
func Distort(data []byte, values ...any) {
	s := &source{data}
	for range maxChanges {
		if len(s.data) == 0 {
			return
		}
		s.change(reflect.ValueOf(values[s.choose(len(values))]))
	}
}

// Seed adds random data for Distort to a fuzz test. The data are the same every time.
func Seed(f *testing.F, add func(data []byte)) {
	const seeds, size = 100, 48
	f.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	for range seeds {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		add(data[:1+random.IntN(size)])
	}
}

// Objects is like Distort, for objects of an API server. Their names, namespaces and UIDs stay, and an object
// that is being deleted has a finalizer.
func Objects(data []byte, objects ...client.Object) {
	type identity struct{ meta metav1.ObjectMeta }
	var before []identity
	var values []any
	for _, object := range objects {
		before = append(before, identity{metav1.ObjectMeta{Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID()}})
		values = append(values, object)
	}
	Distort(data, values...)
	for i, object := range objects {
		object.SetName(before[i].meta.Name)
		object.SetNamespace(before[i].meta.Namespace)
		object.SetUID(before[i].meta.UID)
		object.SetResourceVersion("")
		object.SetManagedFields(nil)
		if object.GetDeletionTimestamp().IsZero() {
			object.SetDeletionTimestamp(nil)
		} else if len(object.GetFinalizers()) == 0 {
			object.SetFinalizers([]string{"example.org/held"})
		}
	}
}

// source contains the remaining fuzz data. After their end, all bytes are zero.
type source struct{ data []byte }

func (s *source) next() byte {
	if len(s.data) == 0 {
		return 0
	}
	first := s.data[0]
	s.data = s.data[1:]
	return first
}

func (s *source) choose(n int) int { return int(s.next()) % n }

func pick[T any](s *source, from ...T) T { return from[s.choose(len(from))] }

// change changes one field somewhere below a value.
func (s *source) change(v reflect.Value) {
	if v.CanSet() && s.special(v) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		s.pointer(v)
	case reflect.Struct:
		s.field(v)
	case reflect.Slice:
		s.list(v)
	case reflect.Map:
		s.entry(v)
	default:
		if v.CanSet() {
			s.leaf(v)
		}
	}
}

// special changes values that have unusual values of their own.
func (s *source) special(v reflect.Value) bool {
	switch value := v.Addr().Interface().(type) {
	case *metav1.Time:
		value.Time = s.time()
	case *metav1.MicroTime:
		value.Time = s.time()
	case *time.Time:
		*value = s.time()
	case *metav1.Duration:
		value.Duration = time.Duration(s.number())
	case *resource.Quantity:
		*value = pick(s, resource.Quantity{}, resource.MustParse("-1"), resource.MustParse("9223372036854775807"), resource.MustParse("1n"), resource.MustParse("16Ei"))
	case *intstr.IntOrString:
		*value = pick(s, intstr.FromInt32(math.MinInt32), intstr.FromInt32(math.MaxInt32), intstr.FromInt32(-1), intstr.FromInt32(0), intstr.FromString(s.text()),
			intstr.FromString("-5%"), intstr.FromString("101%"), intstr.FromString("99999999999999999999%"), intstr.FromString("%"), intstr.FromString("1.5%")) // JSON has no other types
	case *runtime.RawExtension: // the API server stores only JSON, with numbers as Go writes them
		*value = runtime.RawExtension{Raw: []byte(pick(s, "{}", "null", "[]", `"x"`, "-1", `{"a":{"a":[{"a":null}]}}`, `{"vmPool":1e+99}`, deep))}
	case *[]byte:
		*value = []byte(s.text())
	default:
		return false
	}
	return true
}

func (s *source) time() time.Time {
	return pick(s, time.Time{}, time.Unix(0, 0), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC),
		time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), time.Date(2026, 3, 1, 12, 0, 1, 0, time.UTC), time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC))
}

func (s *source) number() int64 {
	return pick(s, 0, -1, 1, math.MinInt64, math.MaxInt64, math.MaxInt32, math.MinInt32, 1<<31, 100, -100, int64(s.next()))
}

// texts are strings that have a meaning in some field, or in none.
var texts = []string{
	"", " ", "\x00", "\xff\xfe", "\x1b[2J", "a/b/c", "../../etc", "-1", "0", "99999999999999999999", "NaN", "1e400", "-5%", "100%",
	"true", "False", "null", "{}", "{", "[]", "9999-12-31T23:59:59Z", "2026-03-01T12:00:00Z", "0001-01-01T00:00:00Z", "-1h", "876000h", "1ns",
	"machine", "pool", "class", "ns", "m0", "m0~m1~", "~", "now", "when-failed", "Failed", "Running", "Terminating", "Unknown", "MachineSet", "Machine",
	"machine.sapcloud.io/v1alpha1", "foregroundDeletion", "orphan", strings.Repeat("x", 70), strings.Repeat("ü", 300), strings.Repeat("9", 400),
	strings.Repeat("a~", 20000),
}

// deep returns JSON with many levels.
var deep = strings.Repeat(`{"a":`, 500) + "0" + strings.Repeat("}", 500)

func (s *source) text() string { return texts[s.choose(len(texts))] }

func (s *source) pointer(v reflect.Value) {
	switch {
	case v.IsNil() && v.CanSet():
		v.Set(reflect.New(v.Type().Elem()))
		s.change(v.Elem())
	case v.IsNil():
	case v.CanSet() && s.choose(4) == 0:
		v.SetZero()
	default:
		s.change(v.Elem())
	}
}

func (s *source) field(v reflect.Value) {
	if v.NumField() == 0 {
		return
	}
	at := s.choose(v.NumField())
	for i := range v.NumField() { // the first settable field, from there on
		if field := v.Field((at + i) % v.NumField()); field.CanSet() && field.Kind() != reflect.Interface {
			s.change(field)
			return
		}
	}
}

func (s *source) list(v reflect.Value) {
	if !v.CanSet() {
		return
	}
	switch n := v.Len(); {
	case n == 0 || s.choose(5) == 0: // a null or empty value
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	case s.choose(6) == 0:
		v.SetZero()
	case s.choose(6) == 0: // a duplicate
		v.Set(reflect.Append(v, v.Index(s.choose(n))))
	default:
		s.change(v.Index(s.choose(n)))
	}
}

// keys are meaningful keys of annotations, labels and data.
var keys = []string{
	"", "x/y/z", strings.Repeat("k", 70), "userData", "kubeconfig",
	v1alpha1.NodeLabelKey, v1alpha1.LabelKeyName, v1alpha1.LabelKeyForceDeletion, v1alpha1.LabelKeyFreeze, v1alpha1.LabelKeyMachineName,
	v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelKeyMachineSetScaleUpDisabled, v1alpha1.DefaultMachineDeploymentUniqueLabelKey,
	v1alpha1.AnnotationKeyMachinePriority, v1alpha1.AnnotationKeyMarkedForDeletionTime, v1alpha1.AnnotationKeyTriggerDeletion,
	v1alpha1.AnnotationKeyLastReplicaChange, v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout, v1alpha1.AnnotationKeyLastAppliedNodeTemplate,
	v1alpha1.AnnotationKeyLastAppliedVirtualCapacity, v1alpha1.AnnotationKeyNotManaged, v1alpha1.AnnotationKeyPreserve,
	v1alpha1.AnnotationKeyLastAppliedPreserve, v1alpha1.AnnotationKeyScaleDownDisabled, v1alpha1.AnnotationKeyScaleDownDisabledByMCM,
	v1alpha1.AnnotationKeyRevision, v1alpha1.AnnotationKeyRevisionHistory, v1alpha1.AnnotationKeyDesiredReplicas, v1alpha1.AnnotationKeyMaxReplicas,
	v1alpha1.AnnotationKeyUnfreeze, v1alpha1.EventAnnotationCause, v1alpha1.EventAnnotationObjects, v1alpha1.EventAnnotationUntil,
	"cluster.x-k8s.io/paused", "cluster.x-k8s.io/cluster-name", "kubernetes.io/change-cause",
}

func (s *source) entry(v reflect.Value) {
	if v.Type().Key().Kind() != reflect.String || !v.CanSet() {
		return
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
	key.SetString(keys[s.choose(len(keys))])
	if there := v.MapKeys(); len(there) > 0 && s.choose(3) == 0 {
		least := there[0]
		for _, other := range there[1:] {
			if other.String() < least.String() {
				least = other
			}
		}
		key = least
		if s.choose(3) == 0 {
			v.SetMapIndex(key, reflect.Value{})
			return
		}
	}
	s.change(value)
	v.SetMapIndex(key, value)
}

func (s *source) leaf(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(s.text())
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(s.number())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(s.number()))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(pick(s, 0, -1, math.Inf(1), math.NaN()))
	}
}
