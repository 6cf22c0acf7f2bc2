package absurd_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/absurd"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// FuzzDistort checks that equal data make equal objects, that the objects keep their identities and can be
// encoded, and that empty data change nothing.
func FuzzDistort(f *testing.F) {
	f.Add([]byte(nil))
	absurd.Seed(f, func(data []byte) { f.Add(data) })
	f.Fuzz(func(t *testing.T, data []byte) {
		distorted := func() []client.Object {
			objects := []client.Object{fixture.Machine(), fixture.MachineSet(), fixture.Node(), fixture.VirtualMachine()}
			absurd.Objects(data, objects...)
			return objects
		}
		first, again := distorted(), distorted()
		for i := range first {
			if diff := cmp.Diff(first[i], again[i]); diff != "" {
				t.Errorf("it is different the second time:\n%s", diff)
			}
			if first[i].GetName() == "" || first[i].GetUID() == "" {
				t.Errorf("%T lost its identity", first[i])
			}
		}
		if diff := cmp.Diff(client.Object(fixture.Machine()), first[0]); len(data) == 0 && diff != "" {
			t.Errorf("changed without data:\n%s", diff)
		}
	})
}
