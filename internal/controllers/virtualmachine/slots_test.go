package virtualmachine

import (
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMigration_WaitsForSlot checks that the second of two VMs that must leave a host at the same time gets its target when the first
// one has left. The downtime of the first is measured from the reports of its two hypervisors.
func TestMigration_WaitsForSlot(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	sources := map[string]*hypervisor{}
	responses := make(chan *vmResponse, 2)
	for _, name := range []string{"a", "b"} {
		pod, source, _ := w.migratable(name, nil)
		sources[name] = source
		w.evict(pod)
	}
	for name, source := range sources {
		go func() { responses <- &vmResponse{name, <-source.requestTarget()} }()
	}
	first, second := "a", "b"
	w.eventually("one of them leaves", func() bool {
		if w.record("b").TargetPodUID != "" {
			first, second = "b", "a"
		}
		return w.record(first).TargetPodUID != ""
	})
	pod := w.awaitTarget(first, "")
	target, _ := w.target(first, pod, 2)
	if got := <-responses; got.name != first || got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE {
		t.Fatalf("the response is %v", got)
	}
	phase := func(phase vmpb.ReportStateRequest_Migration_Phase) func(*vmpb.ReportStateRequest) {
		return func(r *vmpb.ReportStateRequest) {
			r.CanMigrate, r.Migration = true, &vmpb.ReportStateRequest_Migration{Phase: phase, TargetPod: pod.Name}
		}
	}
	stopped := time.Now().Truncate(time.Second) // the precision of stored times
	sources[first].report(vmpb.ReportStateRequest_STATE_RUNNING, phase(vmpb.ReportStateRequest_Migration_PHASE_STOPPED))
	w.wantMigrating(first, string(v1alpha1.MigrationCopying))
	if record := w.vm(second).Status.Migration; record != nil {
		t.Errorf("the other VM has migration %+v", record)
	}
	w.must(target.switchOver(sources[first].us))
	target.report(vmpb.ReportStateRequest_STATE_RUNNING, phase(vmpb.ReportStateRequest_Migration_PHASE_DONE))
	w.eventually("the downtime is recorded", func() bool { return w.record(first).Downtime != nil })
	if took := w.record(first).Downtime.Duration; took <= 0 || took > time.Since(stopped) {
		t.Errorf("the downtime is %s", took)
	}

	next := w.awaitTarget(second, "")
	w.target(second, next, 2)
	if got := <-responses; got.name != second || got.GetTargetPod() != next.Name {
		t.Errorf("the response is %v", got)
	}
}

// vmResponse is the response to the hypervisor of a VM.
type vmResponse struct {
	name string
	targetResponse
}
