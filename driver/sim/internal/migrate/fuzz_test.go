package migrate_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/migrate"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
	"github.com/millwright-dev/millwright/driver/status"
)

// FuzzFill_MigratesOrRejects: any legacy class either becomes a class with valid JSON, with the same result each time, or is rejected
// with a code and leaves the class unchanged.
func FuzzFill_MigratesOrRejects(f *testing.F) {
	for i := range legacy.Kinds() {
		for _, text := range []string{
			`{}`, `{"spec":{}}`, `{"spec":{"tags":{"a":"b"},"secretRef":{"name":"s"},"credentialsSecretRef":{"name":"c","namespace":"other"}}}`,
			`{"spec":{"tags":["a"],"labels":{"a":"b"}}}`, `{"spec":{"tags":{"\u0000":"\u001b[2J"}}}`, `{"spec":null}`,
		} {
			f.Add(uint8(i), []byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, raw []byte) {
		kind := legacy.Kinds()[int(which)%len(legacy.Kinds())]
		object := legacy.New(kind)
		if json.Unmarshal(raw, object) != nil {
			return // no API server returns such an object
		}
		before := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Provider: "theirs"}
		fill := func() (*v1alpha1.MachineClass, error) {
			class := before.DeepCopy()
			return class, migrate.Fill(&driver.GenerateMachineClassForMigrationRequest{
				ProviderSpecificMachineClass: object, MachineClass: class, ClassSpec: &v1alpha1.ClassSpec{Kind: kind},
			})
		}
		class, err := fill()
		if err != nil {
			if code := status.Code(err); code != codes.Internal && code != codes.InvalidArgument {
				t.Errorf("rejected with code %s: %v", code, err)
			}
			if diff := cmp.Diff(before, class); diff != "" {
				t.Errorf("class was rejected but changed:\n%s", diff)
			}
			return
		}
		if !json.Valid(class.ProviderSpec.Raw) || class.Provider != migrate.Provider {
			t.Errorf("got provider %q with specification %q", class.Provider, class.ProviderSpec.Raw)
		}
		if _, err := spec.Parse(class); err != nil {
			t.Errorf("the driver cannot parse its own result: %v", err)
		}
		if again, err := fill(); err != nil || cmp.Diff(class, again) != "" {
			t.Errorf("second call: %v, %s", err, cmp.Diff(class, again))
		}
	})
}
