package spec_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
	"github.com/millwright-dev/millwright/driver/status"
)

// TestParse_RejectsOtherTypes: the error for a specification of another type uses JSON terms, not Go types.
func TestParse_RejectsOtherTypes(t *testing.T) {
	for raw, want := range map[string]string{
		`"small"`: "providerSpec: invalid JSON string",
		`["a"]`:   "providerSpec: invalid JSON array",
		`1`:       "providerSpec: invalid JSON number",
	} {
		_, err := spec.Parse(&v1alpha1.MachineClass{ProviderSpec: runtime.RawExtension{Raw: []byte(raw)}})
		if found, _ := status.FromError(err); found.Code() != codes.InvalidArgument || found.Message() != want {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// FuzzParse: a provider specification is either accepted with no negative durations, or rejected with
// InvalidArgument. Calls that only look for VMs also accept it, with the same result.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "{}", "null", "[]", `{"pool": "a"}`, `{"createDelay": "-1s"}`, `{"nodeDelay": "1e9h"}`, `{"zone": "\u0000"}`, `{"unknown": 1}`, `{"pool": 1}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		class := &v1alpha1.MachineClass{ProviderSpec: runtime.RawExtension{Raw: raw}}
		parsed, err := spec.Parse(class)
		if err != nil && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "providerSpec")) {
			t.Errorf("%q: %v", raw, err)
		}
		found, findErr := spec.ParseToFind(class)
		if err == nil && (findErr != nil || !reflect.DeepEqual(found, parsed)) {
			t.Errorf("%q: got %+v, %v to find VMs, and %+v to create them", raw, found, findErr, parsed)
		}
	})
}
