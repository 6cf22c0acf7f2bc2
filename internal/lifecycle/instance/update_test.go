package instance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// made1 adds the VM of the request, with a specification.
func made1(d *fake.Driver, spec string) instance.Request {
	d.Add(fake.VM{ProviderID: "sim://1", Namespace: "ns", Machine: "m", Class: "ns/class", Spec: spec, Initialized: true})
	return known("m")
}

func TestUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		req := made1(d, `{"tags":1,"size":1}`)
		req.Class.ProviderSpec = runtime.RawExtension{Raw: []byte(`{"tags":2,"size":2}`)}
		p := start(t, d)
		planned := is[instance.Compared](t, ask(p.Plan, req))
		if got := planned.Differences; !slices.Equal(got.Updates, []string{"tags"}) || !slices.Equal(got.Replacements, []string{"size"}) {
			t.Errorf("the plan is %+v", planned)
		}
		equalCalls(t, d, fake.UpdateMachine)
		if updated := is[instance.Compared](t, ask(p.Update, req)); !slices.Equal(updated.Differences.Updates, []string{"tags"}) {
			t.Errorf("the update is %+v", updated)
		}
		equalCalls(t, d, fake.UpdateMachine, fake.UpdateMachine) // the second call verifies the update
		p.Update(req)
		synctest.Wait()
		equalCalls(t, d)
	})
}

func TestUpdate_FailureIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		req := made1(d, `{"tags":1}`)
		req.Class.ProviderSpec = runtime.RawExtension{Raw: []byte(`{"tags":2}`)}
		p := start(t, d)
		d.FailAfter(fake.UpdateMachine, codes.Unavailable)
		got := is[instance.Failed](t, ask(p.Update, req))
		if got.Failure.Method != instance.MethodUpdate || got.Failure.Code != codes.Unavailable {
			t.Fatalf("the failure is %+v", got.Failure)
		}
		within(t, "the update is repeated", got.Retry, time.Second)
		time.Sleep(2 * time.Second)
		is[instance.Compared](t, ask(p.Update, req))
	})
}

// TestDelete_StopsUpdate checks that a deletion cancels an update, which is no longer needed.
func TestDelete_StopsUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		req := made1(d, `{}`)
		p := start(t, d)
		block := d.Block(fake.UpdateMachine)
		p.Update(req)
		<-block.Entered()
		p.Delete(req) // cancels the call
		synctest.Wait()
		is[instance.Gone](t, ask(p.Delete, req))
	})
}

// TestMessages_OfDriversAreSanitized checks that a driver's texts can always be stored, and that no difference is lost.
func TestMessages_OfDriversAreSanitized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		req := made1(d, `{}`)
		p := start(t, d)
		texts := []string{"tags", "tags", "", "\x1b[31mred", "\xff", strings.Repeat("x", 1000)}
		for i := range 100 {
			texts = append(texts, fmt.Sprint("field ", i))
		}
		d.OnUpdate(fake.Always[driver.UpdateMachineRequest](&driver.UpdateMachineResponse{Updates: texts, Replacements: texts[2:3]}, nil))
		got := is[instance.Compared](t, ask(p.Plan, req)).Differences
		if len(got.Updates) > 16 || len(got.Replacements) != 1 || got.Updates[0] != "tags" || !strings.HasSuffix(got.Updates[len(got.Updates)-1], " more") {
			t.Errorf("updates %q, replacements %q", got.Updates, got.Replacements)
		}
		for _, text := range got.Updates {
			if len(text) > 256 || !utf8.ValidString(text) || strings.ContainsRune(text, '\x1b') {
				t.Errorf("%q cannot be stored", text)
			}
		}
	})
}

func TestUpdate_DriverWithoutUpdate(t *testing.T) {
	for name, bare := range map[string]bool{"without the method": true, "that returns Unimplemented": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDriver()
				req := made1(d, `{}`)
				d.Fail(fake.UpdateMachine, codes.Unimplemented)
				var used driver.Driver = d
				if bare {
					used = struct{ driver.Driver }{d}
				}
				if got := is[instance.Compared](t, ask(start(t, used).Plan, req)); !slices.Equal(got.Differences.Replacements, []string{instance.Unable}) {
					t.Errorf("the plan is %+v", got)
				}
			})
		})
	}
}
