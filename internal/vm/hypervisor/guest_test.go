package hypervisor_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// last returns the last report in the form "STATE CAUSE".
func (w *fixture) last() string {
	w.t.Helper()
	reports := w.controller.Reports()
	if len(reports) == 0 {
		w.t.Fatal("no reports")
	}
	report := reports[len(reports)-1]
	return report.GetState().String() + " " + report.GetCause().String()
}

func (w *fixture) wantLast(want string) {
	w.t.Helper()
	if got := w.last(); got != want {
		w.t.Errorf("reported %s, want %s", got, want)
	}
}

// A guest whose disk is full is reported as stopped until it really runs again, however often it is continued.
func TestGuest_FullDisk(t *testing.T) {
	for name, c := range map[string]struct {
		failure qemu.StorageFailure
		want    string
	}{
		"full":   {qemu.StorageFailure{Operation: "write", NoSpace: true}, "STATE_PAUSED CAUSE_NO_SPACE"},
		"broken": {qemu.StorageFailure{Operation: "read", Reason: "Input/output error"}, "STATE_PAUSED CAUSE_STORAGE_FAILED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Attr("fault", "The storage of a guest is "+name+" for an hour")
			t.Attr("outcome", "The guest is stopped and reported as "+c.want+"; it runs again within 7 s after the storage recovers")
			withFixture(t, func(w *fixture) {
				p := w.start()
				w.machine().FailStorage(&c.failure)
				pass(0)
				w.wantLast(c.want)
				pass(time.Hour)
				w.wantLast(c.want)
				w.machine().FailStorage(nil)
				pass(7 * time.Second)
				w.wantLast("STATE_RUNNING CAUSE_UNKNOWN")
				want := []string{"STATE_RUNNING", "STATE_PAUSED", "STATE_RUNNING"}
				if diff := cmp.Diff(want, w.authorizedStates()); diff != "" {
					t.Errorf("states (-want +got):\n%s", diff)
				}
				p.wantAlive()
			})
		})
	}
}

// A guest that the user wants stopped is not continued.
func TestGuest_FullDiskWhilePaused(t *testing.T) {
	t.Attr("fault", "The disk of a guest is full, and a user pauses the guest before there is free space")
	t.Attr("outcome", "The guest stays paused even when there is free space, and runs again when a user resumes it")
	withFixture(t, func(w *fixture) {
		w.start().wantAlive()
		w.machine().FailStorage(&qemu.StorageFailure{NoSpace: true})
		w.controller.Respond(leasePaused())
		pass(0)
		w.machine().FailStorage(nil)
		pass(time.Hour)
		if state := w.machine().Status(); state != qemu.StorageFailed {
			t.Errorf("state = %s", state)
		}
		w.controller.Respond(leaseOK())
		pass(2 * time.Second)
		w.wantLast("STATE_RUNNING CAUSE_UNKNOWN")
	})
}

// A reset boots a guest that a full disk has stopped.
func TestGuest_ResetAfterFullDisk(t *testing.T) {
	t.Attr("fault", "The disk of a guest is full, and the guest is reset once there is free space")
	t.Attr("outcome", "The guest boots")
	withFixture(t, func(w *fixture) {
		w.start().wantAlive()
		w.machine().FailStorage(&qemu.StorageFailure{NoSpace: true})
		pass(0)
		w.machine().FailStorage(nil)
		must(t, w.machine().Reset(t.Context()))
		pass(0)
		if state := w.machine().Status(); state != running {
			t.Errorf("state = %s", state)
		}
		w.wantLast("STATE_RUNNING CAUSE_UNKNOWN")
	})
}

// A command of another client of QEMU is reported and not reverted.
func TestGuest_StateOfQEMUIsReported(t *testing.T) {
	withFixture(t, func(w *fixture) {
		p := w.start()
		for _, step := range []struct {
			state qemu.Status
			want  string
		}{
			{paused, "STATE_PAUSED CAUSE_UNKNOWN"},
			{running, "STATE_RUNNING CAUSE_UNKNOWN"},
			{qemu.Suspended, "STATE_PAUSED CAUSE_SUSPENDED"},
			{running, "STATE_RUNNING CAUSE_UNKNOWN"},
			{"debug", "STATE_PAUSED CAUSE_UNKNOWN"},
		} {
			w.machine().Become(step.state)
			pass(time.Minute)
			w.wantLast(step.want)
			if state := w.machine().Status(); state != step.state {
				t.Errorf("state = %s, want %s", state, step.state)
			}
		}
		w.machine().Become(qemu.Broken)
		p.wantEnd(vmpb.EndQEMUFailed)
	})
}

// Another controller does not know what was reported to the previous one.
func TestReport_IsRepeatedToAnotherController(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.start().wantAlive()
		before := len(w.controller.Reports())
		pass(time.Hour)
		if after := len(w.controller.Reports()); after != before {
			t.Errorf("got %d reports, then %d", before, after)
		}
		w.controller.EndStreams()
		pass(15 * time.Second)
		if after := len(w.controller.Reports()); after != before+1 {
			t.Errorf("got %d reports before another stream, and %d after", before, after)
		}
		w.wantLast("STATE_RUNNING CAUSE_UNKNOWN")
	})
}

// A message of any length and content can be reported.
func TestReport_AcceptsAnyMessage(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.start().wantAlive()
		w.machine().FailStorage(&qemu.StorageFailure{Operation: "write", Reason: "\xff" + string(make([]byte, 8<<20))})
		pass(time.Minute)
		w.wantLast("STATE_PAUSED CAUSE_STORAGE_FAILED")
	})
}
