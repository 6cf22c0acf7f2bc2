package sim_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

func (w testDriver) domains() ([]driver.FailureDomain, error) {
	resp, err := w.ListFailureDomains(w.t.Context(), &driver.ListFailureDomainsRequest{MachineClass: w.class, Secret: &corev1.Secret{}})
	if err != nil {
		return nil, err
	}
	return resp.FailureDomains, nil
}

// placed returns the testDriver with the class placed in a failure domain.
func (w testDriver) placed(domain string) testDriver {
	w.t.Helper()
	resp, err := w.PlaceMachine(w.t.Context(), &driver.PlaceMachineRequest{MachineClass: w.class, FailureDomain: domain})
	if err != nil {
		w.t.Fatal(err)
	}
	class := w.class.DeepCopy()
	class.ProviderSpec = resp.ProviderSpec
	return w.with(class)
}

func setZones(t *testing.T, cloud *sim.Cloud, names ...string) {
	t.Helper()
	if err := cloud.SetZones(names...); err != nil {
		t.Fatal(err)
	}
}

func TestZone_Settings(t *testing.T) {
	for name, cloud := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			w := newTestDriver(t, sim.Config{Cloud: cloud}, nil)
			if got, err := w.domains(); err != nil || len(got) != 0 {
				t.Errorf("a new cloud has failure domains %v, %v", got, err)
			}
			setZones(t, cloud, "c")
			setZones(t, cloud)
			if got, err := w.domains(); err != nil || len(got) != 0 {
				t.Errorf("got failure domains %v, %v", got, err)
			}
			setZones(t, cloud, "b", "a", "b")
			got, err := w.domains()
			if diff := cmp.Diff([]driver.FailureDomain{{Name: "a"}, {Name: "b"}}, got); diff != "" || err != nil {
				t.Errorf("failure domains (-want +got):\n%s%v", diff, err)
			}
		})
	}
}

func TestZone_ContainsVMs(t *testing.T) {
	for name, cloud := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			w := newTestDriver(t, sim.Config{Cloud: cloud}, object{"pool": "p"})
			setZones(t, cloud, "a", "b")
			inA := w.placed("a")
			inA.mustCreate("m")
			if vm := w.vms()[0]; vm.Zone != "a" || vm.Node.Labels[corev1.LabelTopologyZone] != "a" {
				t.Errorf("got VM %+v", vm)
			}
			_, err := w.placed("b").create("m")
			wantCode(t, err, codes.AlreadyExists)
			_, err = w.placed("c").create("n")
			wantCode(t, err, codes.FailedPrecondition)
			if text := fmt.Sprint(err); !strings.Contains(text, `"c"`) || !strings.Contains(text, "a, b") {
				t.Errorf("got error %s", text)
			}

			setZones(t, cloud, "b")
			inA.mustCreate("m") // adopts the existing VM
			if list := inA.list(); len(list) != 1 {
				t.Errorf("got list %v", list)
			}
			inA.mustRemove("m", "")
		})
	}
}

// TestZone_Quota: all pools share the quota, which does not affect other zones or existing VMs. A deletion frees
// quota.
func TestZone_Quota(t *testing.T) {
	for name, cloud := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			one := newTestDriver(t, sim.Config{Cloud: cloud}, object{"pool": "one", "zoneCapacity": 2})
			two := newTestDriver(t, sim.Config{Cloud: cloud}, object{"pool": "two", "zoneCapacity": 2})
			setZones(t, cloud, "a", "b")
			one.placed("a").mustCreate("m1")
			two.placed("a").mustCreate("m2")
			_, err := one.placed("a").create("m3")
			wantCode(t, err, codes.ResourceExhausted)
			if text := fmt.Sprint(err); !strings.Contains(text, `zone "a" is full: 2 of 2`) {
				t.Errorf("got error %s", text)
			}
			one.placed("b").mustCreate("m3")
			one.placed("a").mustCreate("m1") // adopted
			two.placed("a").mustRemove("m2", "")
			one.placed("a").mustCreate("m4")
		})
	}
}

// TestZone_IsSharedByProcesses: all handles of a directory have the same zones.
func TestZone_IsSharedByProcesses(t *testing.T) {
	dir := t.TempDir()
	one, other := openCloud(t, dir), openCloud(t, dir)
	setZones(t, one, "a")
	if got, err := other.Zones(); err != nil || !cmp.Equal(got, []string{"a"}) {
		t.Errorf("got zones %v, %v", got, err)
	}
}

func TestPlaceMachine_SelectsZone(t *testing.T) {
	w := newTestDriver(t, sim.Config{}, object{"pool": "p", "zone": "z"})
	before := w.class.DeepCopy()
	if got := string(w.placed("a").class.ProviderSpec.Raw); got != `{"pool":"p","zone":"a"}` {
		t.Errorf("got specification %s", got)
	}
	if diff := cmp.Diff(before, w.class); diff != "" {
		t.Errorf("the class was changed:\n%s", diff)
	}
	_, err := w.PlaceMachine(w.t.Context(), &driver.PlaceMachineRequest{MachineClass: w.class, FailureDomain: "a/b"})
	wantCode(t, err, codes.NotFound)
	if err := w.Cloud().SetZones("a/b"); err == nil {
		t.Error("PlaceMachine accepted a zone that is not a valid label value")
	}
	_, err = newTestDriver(t, sim.Config{}, object{"zone": "a/b"}).create("m")
	wantCode(t, err, codes.InvalidArgument)
}

// TestListFailureDomains_Faults: faults of ListFailureDomains work, as tests of controllers need them.
func TestListFailureDomains_Faults(t *testing.T) {
	w := newTestDriver(t, sim.Config{}, nil)
	w.Cloud().Fail(sim.Fault{Method: sim.ListFailureDomains})
	_, err := w.domains()
	wantCode(t, err, codes.Unavailable)
	if _, err := w.domains(); status.Code(err) != codes.OK {
		t.Errorf("second call: %v", err)
	}
}
