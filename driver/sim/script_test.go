package sim_test

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

// scripted returns the driver with a class that has an annotation.
func (w testDriver) scripted(annotation, value string) testDriver {
	class := w.class.DeepCopy()
	class.Annotations = map[string]string{"sim.millwright.dev/" + annotation: value}
	return w.with(class)
}

// TestClass_Faults: faults are counted while the annotation is unchanged, and start again when it changes.
func TestClass_Faults(t *testing.T) {
	t.Parallel()
	w := newTestDriver(t, sim.Config{}, nil)
	faulty := w.scripted("faults", `[{"method": "CreateMachine", "machine": "a-*", "codes": ["Internal", "ResourceExhausted"]}]`)
	_, err := faulty.create("a-1")
	wantCode(t, err, codes.Internal)
	faulty.mustCreate("b-1")
	_, err = faulty.create("a-2")
	wantCode(t, err, codes.ResourceExhausted)
	faulty.mustCreate("a-1")
	again := w.scripted("faults", `[{"method": "CreateMachine", "codes": ["Internal"], "lostAnswer": true}]`)
	_, err = again.create("a-3")
	wantCode(t, err, codes.Internal)
	again.mustCreate("a-3")
	w.mustCreate("c-1")
	if got := len(w.vms()); got != 4 {
		t.Errorf("got %d VMs, want 4: the response of one creation was lost", got)
	}
}

// TestZone_Outage: calls for a zone with an outage fail, other zones work, and afterwards everything works as before.
func TestZone_Outage(t *testing.T) {
	t.Parallel()
	cloud := sim.NewCloud(sim.CloudOptions{})
	setZones(t, cloud, "a", "b")
	w := newTestDriver(t, sim.Config{Cloud: cloud}, object{"pool": "p"})
	w.placed("a").mustCreate("m1")
	out := w.scripted("outage", " a,c ")
	_, err := out.placed("a").create("m1")
	wantCode(t, err, codes.Unavailable)
	out.placed("b").mustCreate("m2")
	if _, err := out.domains(); !status.Is(err, codes.Unavailable) {
		t.Errorf("ListMachines during an outage: got error %v", err)
	}
	_, err = w.scripted("outage", "*").create("m3")
	wantCode(t, err, codes.Unavailable)
	w.placed("a").mustCreate("m1")
	if got := len(w.list()); got != 2 {
		t.Errorf("got %d VMs", got)
	}
}

// TestClass_RejectsInvalidAnnotations: invalid annotations are rejected with the name of the annotation.
func TestClass_RejectsInvalidAnnotations(t *testing.T) {
	t.Parallel()
	w := newTestDriver(t, sim.Config{}, nil)
	for _, text := range []string{"x", "{}", `[{"metod": "x"}]`, `[{"codes": ["OK"]}]`, `[{"codes": ["Bad"]}]`, `[{"machine": "["}]`, `[{"rate": 2}]`} {
		_, err := w.scripted("faults", text).create("m")
		if !status.Is(err, codes.InvalidArgument) || !strings.Contains(err.Error(), "sim.millwright.dev/faults") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestClass_InvalidFaultsDoNotPreventDeletion checks that the calls of a deletion ignore invalid faults, but not an outage.
func TestClass_InvalidFaultsDoNotPreventDeletion(t *testing.T) {
	t.Parallel()
	cloud := sim.NewCloud(sim.CloudOptions{})
	setZones(t, cloud, "a")
	w := newTestDriver(t, sim.Config{Cloud: cloud}, nil).placed("a")
	id := w.mustCreate("m").ProviderID
	invalid := w.scripted("faults", `[{"codes": ["Internal"]}, {"rate": 2}]`)
	out := invalid.with(invalid.class.DeepCopy())
	out.class.Annotations["sim.millwright.dev/outage"] = "a"
	wantCode(t, out.remove("m", id), codes.Unavailable)
	_, err := out.status("m", "")
	wantCode(t, err, codes.Unavailable)
	invalid.mustRemove("m", id)
	_, err = invalid.status("m", id)
	wantCode(t, err, codes.NotFound)
}
