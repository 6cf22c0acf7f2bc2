package v1alpha1

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// TestNodeTemplate_IgnoresUnreadableQuantities checks that a class with a quantity that Go cannot parse, or
// needs hours to parse, does not prevent reading the list or the rest of that class.
func TestNodeTemplate_IgnoresUnreadableQuantities(t *testing.T) {
	for _, bad := range []string{
		`"1e1.5"`, `"1e.5"`, `"1e99999999999999999999"`, `"1e2147483648"`, `"1e-2147483647"`, `"1e-2147483648"`,
		`"` + strings.Repeat("9", 100_000) + `"`, `"x"`, `""`, `1e99999999`, `1e-99999999`, `true`, `{}`, `["1"]`,
	} {
		t.Run(fmt.Sprintf("%.30s", bad), func(t *testing.T) {
			raw := fmt.Sprintf(`{"items":[{"metadata":{"name":"good"},"nodeTemplate":{"capacity":{"cpu":"2"}}},{"metadata":{"name":"bad"},"nodeTemplate":
				{"capacity":{"cpu":"1500m","gpu":1,"memory":%[1]s},"virtualCapacity":{"example.com/x":%[1]s},"zone":"z","architecture":"arm64"}}]}`, bad)
			done := make(chan error, 1)
			list := &MachineClassList{}
			go func() { done <- utiljson.Unmarshal([]byte(raw), list) }()
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("it takes more than a minute")
			}
			want := []*NodeTemplate{
				{Capacity: corev1.ResourceList{"cpu": resource.MustParse("2")}},
				{
					Capacity:        corev1.ResourceList{"cpu": resource.MustParse("1500m"), "gpu": resource.MustParse("1")},
					VirtualCapacity: corev1.ResourceList{}, Zone: "z", Architecture: new("arm64"),
				},
			}
			if diff := cmp.Diff(want, []*NodeTemplate{list.Items[0].NodeTemplate, list.Items[1].NodeTemplate}); diff != "" {
				t.Errorf("node templates (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNodeTemplate_DecodesLikeAPlainStruct covers each way in which clients decode objects.
func TestNodeTemplate_DecodesLikeAPlainStruct(t *testing.T) {
	for _, raw := range []string{
		`{}`, `null`, `{"capacity":null,"instanceType":"","region":"","zone":""}`, `{"capacity":{}}`, `{"capacity":{"cpu":null}}`,
		`{"capacity":{"cpu":4,"memory":"1.5Gi","gpu":"1e3","x":"9223372036854775807"},"virtualCapacity":{"y":"-1n"},"instanceType":"t","region":"r","zone":"z","architecture":"a"}`,
	} {
		type plain NodeTemplate
		var want *plain
		var got, standard *NodeTemplate
		for into, read := range map[any]func([]byte, any) error{&want: utiljson.Unmarshal, &got: utiljson.Unmarshal, &standard: json.Unmarshal} {
			if err := read([]byte(raw), into); err != nil {
				t.Fatalf("%s: %v", raw, err)
			}
		}
		if diff := cmp.Diff((*NodeTemplate)(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", raw, diff)
		}
		if diff := cmp.Diff(got, standard); diff != "" {
			t.Errorf("%s, by encoding/json (-want +got):\n%s", raw, diff)
		}
		var object map[string]any
		if err := utiljson.Unmarshal([]byte(`{"nodeTemplate":`+raw+`}`), &object); err != nil {
			t.Fatal(err)
		}
		class := &MachineClass{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, class); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, class.NodeTemplate); diff != "" {
			t.Errorf("%s, converted (-want +got):\n%s", raw, diff)
		}
	}
	if err := utiljson.Unmarshal([]byte(`{"zone":1}`), &NodeTemplate{}); err == nil {
		t.Error("a number is read as a zone")
	}
}
