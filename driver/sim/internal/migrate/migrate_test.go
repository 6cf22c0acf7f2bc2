package migrate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/migrate"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
	"github.com/millwright-dev/millwright/driver/status"
)

// fill sets all fields to different values that are not zero.
func fill(value reflect.Value, next *int) {
	*next++
	switch value.Kind() {
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		fill(value.Elem(), next)
	case reflect.Struct:
		for i := range value.NumField() {
			fill(value.Field(i), next)
		}
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 2, 2))
		for i := range value.Len() {
			fill(value.Index(i), next)
		}
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		value.SetMapIndex(reflect.ValueOf(fmt.Sprintf("key-%d", *next)), reflect.ValueOf(fmt.Sprintf("value-%d", *next)))
	case reflect.String:
		value.SetString(fmt.Sprintf("text-%d", *next))
	case reflect.Bool:
		value.SetBool(true)
	default:
		value.SetInt(int64(*next))
	}
}

// leaves returns all values by path.
func leaves(value any, path string, into map[string]any) map[string]any {
	switch value := value.(type) {
	case map[string]any:
		for key, child := range value {
			leaves(child, path+"."+key, into)
		}
	case []any:
		for i, child := range value {
			leaves(child, fmt.Sprintf("%s[%d]", path, i), into)
		}
	default:
		into[path] = value
	}
	return into
}

// TestFill_KeepsAllFields: each field of each kind is in the provider specification or in the class itself, with its value.
func TestFill_KeepsAllFields(t *testing.T) {
	t.Parallel()
	for _, kind := range legacy.Kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			object, next := legacy.New(kind), 0
			fill(reflect.ValueOf(object).Elem().FieldByName("Spec"), &next)
			class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
			err := migrate.Fill(&driver.GenerateMachineClassForMigrationRequest{
				ProviderSpecificMachineClass: object, MachineClass: class, ClassSpec: &v1alpha1.ClassSpec{Kind: kind},
			})
			if err != nil {
				t.Fatal(err)
			}
			raw, _ := json.Marshal(object)
			var given struct{ Spec map[string]any }
			var made struct {
				Legacy struct {
					Kind string
					Spec map[string]any
				}
			}
			if err := json.Unmarshal(raw, &given); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(class.ProviderSpec.Raw, &made); err != nil {
				t.Fatal(err)
			}
			want := leaves(given.Spec, "", map[string]any{})
			got := leaves(made.Legacy.Spec, "", map[string]any{})
			for field, ref := range map[string]*corev1.SecretReference{".secretRef": class.SecretRef, ".credentialsSecretRef": class.CredentialsSecretRef} {
				got[field+".namespace"], got[field+".name"] = ref.Namespace, ref.Name
			}
			if diff := cmp.Diff(want, got); diff != "" || made.Legacy.Kind != kind {
				t.Errorf("%s (-given +result):\n%s", made.Legacy.Kind, diff)
			}
			parsed, err := spec.Parse(class)
			if err != nil || class.Provider != migrate.Provider {
				t.Errorf("got provider %q; the driver parses the specification with error %v", class.Provider, err)
			}
			if tagged := len(parsed.Tags) > 0; tagged == (kind == legacy.Packet) {
				t.Errorf("got tags %v", parsed.Tags)
			}
			again := class.DeepCopy()
			if err := migrate.Fill(&driver.GenerateMachineClassForMigrationRequest{
				ProviderSpecificMachineClass: object, MachineClass: again, ClassSpec: &v1alpha1.ClassSpec{Kind: kind},
			}); err != nil || cmp.Diff(class, again) != "" {
				t.Errorf("second call: %v, %s", err, cmp.Diff(class, again))
			}
		})
	}
}

// TestFill_KnowsDocumentedFields: the fields of each kind in MCM's documentation, which are in testdata, are known, and
// appear in the provider specification or in the class itself with their values. None has its zero value.
func TestFill_KnowsDocumentedFields(t *testing.T) {
	t.Parallel()
	for _, kind := range legacy.Kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile(filepath.Join("testdata", kind+".json"))
			if err != nil {
				t.Fatal(err)
			}
			object := legacy.New(kind)
			if unknown, err := kjson.UnmarshalStrict(raw, object); err != nil || len(unknown) > 0 {
				t.Fatalf("got %v, unknown fields: %v", err, unknown)
			}
			class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
			err = migrate.Fill(&driver.GenerateMachineClassForMigrationRequest{
				ProviderSpecificMachineClass: object, MachineClass: class, ClassSpec: &v1alpha1.ClassSpec{Kind: kind},
			})
			if err != nil {
				t.Fatal(err)
			}
			var given struct{ Spec map[string]any }
			var made struct{ Legacy struct{ Spec map[string]any } }
			if err := errors.Join(json.Unmarshal(raw, &given), json.Unmarshal(class.ProviderSpec.Raw, &made)); err != nil {
				t.Fatal(err)
			}
			want, got := leaves(given.Spec, "", map[string]any{}), leaves(made.Legacy.Spec, "", map[string]any{})
			for field, ref := range map[string]*corev1.SecretReference{".secretRef": class.SecretRef, ".credentialsSecretRef": class.CredentialsSecretRef} {
				got[field+".namespace"], got[field+".name"] = ref.Namespace, ref.Name
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-documented +result):\n%s", diff)
			}
		})
	}
}

func TestFill_RejectsInvalidClasses(t *testing.T) {
	t.Parallel()
	class := &v1alpha1.MachineClass{}
	for name, tc := range map[string]struct {
		object any
		class  *v1alpha1.MachineClass
		kind   string
		want   codes.Code
	}{
		"unknown kind":  {&legacy.AWSMachineClass{}, class, "IBMMachineClass", codes.Unimplemented},
		"MachineClass":  {&v1alpha1.MachineClass{}, class, v1alpha1.MachineClassKind, codes.Unimplemented},
		"nil object":    {nil, class, legacy.AWS, codes.Internal},
		"not an object": {"text", class, legacy.AWS, codes.Internal},
		"wrong tags":    {map[string]any{"spec": map[string]any{"tags": 1}}, class, legacy.AWS, codes.Internal},
		"no class":      {&legacy.AWSMachineClass{}, nil, legacy.AWS, codes.Internal},
	} {
		err := migrate.Fill(&driver.GenerateMachineClassForMigrationRequest{
			ProviderSpecificMachineClass: tc.object, MachineClass: tc.class, ClassSpec: &v1alpha1.ClassSpec{Kind: tc.kind},
		})
		if got := status.Code(err); got != tc.want {
			t.Errorf("%s: %v (%v), want %v", name, got, err, tc.want)
		}
	}
	if !slices.IsSortedFunc(legacy.Kinds(), strings.Compare) {
		t.Errorf("kinds are not sorted: %v", legacy.Kinds())
	}
}
