package hypervisor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/memnet"
)

// cuts are network failures between a hypervisor and the VM controller.
var cuts = map[string]struct {
	// fault completes the sentence "The network ...".
	fault string
	cut   memnet.Cut
	// heals reports whether connections that are opened during the cut work.
	heals bool
}{
	"refused":   {"drops all traffic on existing connections and refuses new ones", memnet.Cut{Lost: true, Refused: true}, false},
	"silent":    {"delivers no packets and resets no connections", memnet.Cut{Silent: true}, false},
	"half open": {"drops all traffic on existing connections but accepts new ones", memnet.Cut{Lost: true}, true},
	"slow":      {"takes two seconds per byte", memnet.Cut{PerByte: 2 * time.Second}, false},
}

// found is how long a hypervisor may take to reach the controller after a cut. A silent connection is closed after
// 40 s, and the next one is opened at most 12 s later. A handshake may take 10 s.
const found = time.Minute

// A running guest continues during a cut, and its hypervisor follows the controller as soon as the network allows.
// The hypervisor does not retry too often.
func TestNetwork_CutWhileGuestRuns(t *testing.T) {
	for name, test := range cuts {
		t.Run(name, func(t *testing.T) {
			t.Attr("fault", "The network between a hypervisor and the VM controller "+test.fault+" for an hour")
			var took time.Duration
			var dials int
			withFixture(t, func(w *fixture) {
				p := w.start()
				w.controller.network.Set(test.cut)
				pass(time.Hour)
				p.wantAlive()
				if state := w.machine().Status(); state != running {
					t.Errorf("state = %s", state)
				}
				if dials = w.controller.network.Dials(); dials > 1200 { // one every three seconds
					t.Errorf("%d connection attempts in an hour", dials)
				}
				if open, most := w.controller.Streams(); most > 2 || test.heals && open != 1 {
					t.Errorf("%d streams are open, maximum %d", open, most)
				}
				w.controller.Respond(leaseTerminated())
				if !test.heals {
					pass(time.Minute)
					p.wantAlive()
					w.controller.network.Set(memnet.Cut{})
				}
				begin := time.Now()
				p.wantEnd(vmpb.EndTerminated)
				if took = time.Since(begin); took > found {
					t.Errorf("the request took effect after %s", took)
				}
				lock, err := disk.Acquire(w.config.Paths.RootDisk)
				must(t, err)
				must(t, lock.Release())
			})
			t.Attr("outcome", fmt.Sprintf("The guest keeps running; the hypervisor makes %d connection attempts, and executes a request %.0f s after the network can deliver it",
				dials, took.Seconds()))
		})
	}
}

// A stopped guest stays stopped, and continues once the controller can request it.
func TestNetwork_CutWhileGuestIsPaused(t *testing.T) {
	for name, test := range cuts {
		t.Run(name, func(t *testing.T) {
			t.Attr("fault", "The network between a hypervisor and the VM controller "+test.fault+" for an hour while the guest is paused")
			t.Attr("outcome", "The guest stays paused, and resumes within a minute after the network can deliver the request")
			withFixture(t, func(w *fixture) {
				w.controller.Respond(leasePaused())
				p := w.start()
				w.controller.network.Set(test.cut)
				pass(time.Hour)
				p.wantAlive()
				if state := w.machine().Status(); state == running {
					t.Error("the guest runs")
				}
				w.controller.network.Set(memnet.Cut{})
				w.controller.Respond(leaseOK())
				pass(found)
				if state := w.machine().Status(); state != running {
					t.Errorf("state = %s", state)
				}
			})
		})
	}
}

// The network is cut after each part of what a hypervisor sends during its start: in the handshake, before and
// after the response to its lease, and in each report.
func TestNetwork_CutDuringStart(t *testing.T) {
	for name, test := range cuts {
		t.Run(name, func(t *testing.T) {
			t.Attr("fault", "The network between a hypervisor and the VM controller "+test.fault+", starting at any point during startup")
			runs := 0
			for after, complete := 1, false; !complete; after += 40 {
				withFixture(t, func(w *fixture) {
					w.preparing()
					cut := test.cut
					cut.After = after
					w.controller.network.Set(cut)
					p := w.start()
					pass(25 * time.Second) // ten seconds for the lease, and ten for the confirmation of the disk
					p.wantAlive()
					if count, state := len(w.machines.Started()), w.machine().Status(); count != 1 || state != running {
						t.Errorf("after %d bytes: started %d machines, last state = %s", after, count, state)
					}
					if w.images.written != 1 {
						t.Errorf("after %d bytes: the image was written %d times", after, w.images.written)
					}
					complete = w.controller.network.Waits()
					w.controller.network.Set(memnet.Cut{})
					pass(found)
					if open, _ := w.controller.Streams(); open != 1 {
						t.Errorf("after %d bytes: %d streams are open", after, open)
					}
					reports := w.controller.Reports()
					if last := reports[len(reports)-1]; last.GetState() != vmpb.ReportStateRequest_STATE_RUNNING || !last.GetImagePrepared() {
						t.Errorf("after %d bytes: last report = %v", after, last)
					}
					w.controller.Respond(leaseTerminated())
					begin := time.Now()
					p.wantEnd(vmpb.EndTerminated)
					if took := time.Since(begin); took > time.Second {
						t.Errorf("after %d bytes: terminated after %s", after, took)
					}
				})
				runs++
			}
			if runs < 10 {
				t.Errorf("the network was cut only %d times", runs)
			}
			t.Attr("outcome", "Exactly one guest is started, within 25 s; within a minute after the network recovers, there is one lease, and the latest report has arrived")
		})
	}
}
