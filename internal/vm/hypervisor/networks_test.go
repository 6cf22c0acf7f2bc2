package hypervisor_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// cable leads to another network, which contains only its other end. When it is cut, neither side is notified.
type cable struct {
	t *testing.T
	// name is the name of the network, and end is the name of this end.
	name, end string
	// remote is the address of the other end. controller is the address of the controller as seen from there.
	remote, controller string
}

// lay connects the testCluster to the host of its targets.
func (h *testCluster) lay() *cable {
	h.t.Helper()
	if os.Geteuid() != 0 {
		h.t.Skip("creating network namespaces requires root")
	}
	number := rand.N(1 << 13)
	subnet := fmt.Sprintf("198.18.%d.%%d", number>>6)
	first := number & 63 << 2
	here := fmt.Sprintf(subnet, first+1)
	c := &cable{t: h.t, name: fmt.Sprintf("mwtest%d", number), end: fmt.Sprintf("mwt%d", number), remote: fmt.Sprintf(subnet, first+2)}
	c.ip("netns add " + c.name)
	h.t.Cleanup(func() { c.ip("netns del " + c.name) })
	c.ip("link add " + c.end + " type veth peer name eth0 netns " + c.name)
	c.ip("addr add " + here + "/30 dev " + c.end)
	c.ip("link set " + c.end + " up")
	c.ip("-n " + c.name + " addr add " + c.remote + "/30 dev eth0")
	c.ip("-n " + c.name + " link set eth0 up")
	c.ip("-n " + c.name + " link set lo up")
	listener, err := net.Listen("tcp", here+":0")
	must(h.t, err)
	c.controller = listener.Addr().String()
	go func() { _ = h.server.Serve(listener) }()
	h.cable = c
	return c
}

func (c *cable) ip(command string) { c.t.Helper(); c.run("ip " + command) }

func (c *cable) run(command string) {
	c.t.Helper()
	fields := strings.Fields(command)
	if out, err := exec.Command(fields[0], fields[1:]...).CombinedOutput(); err != nil {
		c.t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// program returns the command that runs a member at the other end.
func (c *cable) program() []string {
	return []string{"nsenter", "--net=/run/netns/" + c.name, os.Args[0]}
}

// cut cuts or repairs the cable.
func (c *cable) cut(is bool) {
	c.t.Helper()
	state := map[bool]string{true: "down", false: "up"}[is]
	c.ip("link set " + c.end + " " + state)
}

// narrow limits the bandwidth to the target to 1 MiB per second, so that a copy is still in progress when the
// cable is cut. QEMU reports 1 MiB of a disk at a time, so it makes progress every second.
func (c *cable) narrow(is bool) {
	c.t.Helper()
	if is {
		c.run("tc qdisc add dev " + c.end + " root tbf rate 8mbit burst 16kb latency 1s")
		return
	}
	c.run("tc qdisc del dev " + c.end + " root")
}

// The network to the target is cut during the negotiation or during the copy. The guest keeps running, and moves
// when the network works again.
func TestMigration_NetworkCutBeforeCommit(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, copies := range map[string]bool{"during the negotiation": false, "during the copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.departure.Negotiate, h.departure.Stall = 5*time.Second, 5*time.Second
			h.fill(16 << 20)
			cable := h.lay()
			source := h.source()
			here := source.counts()
			here.numbers(10)
			targets := []*member{h.target("web-2")}
			h.awaitIncoming(targets[0])
			cut := make(chan struct{})
			ranOn, stays := context.WithCancel(t.Context())
			defer stays()
			h.names(func(question int) *member {
				if question == 0 {
					if copies {
						cable.narrow(true)
					} else {
						cable.cut(true)
						close(cut)
					}
					return targets[0]
				}
				<-cut
				<-ranOn.Done() // the guest does not move before the test has seen that it keeps running
				targets[question-1].kill()
				if question == 1 && copies {
					cable.narrow(false)
				}
				cable.cut(false)
				targets = append(targets, h.target(fmt.Sprintf("web-%d", question+2)))
				return targets[question]
			})
			h.controller.Change(func(a *authority) { a.migrate = true })
			if copies {
				h.awaitCopy()
				cable.cut(true)
				close(cut)
			}
			h.awaitPhase(failed)
			here.keepsRunning() // it keeps running
			stays()
			here.toTheEnd()
			source.wantEnd(vmpb.EndTerminated) // no one asks for targets any more
			arrived := targets[len(targets)-1]
			onTarget := here.continuesOn(arrived)
			onTarget.keepsRunning()
			arrived.kill()
			arrived.wantAll(onTarget.last)
		})
	}
}

// The network to the target is cut before the target can ask for the VM, or before it learns that it has it. The
// guest continues where it was, or not at all, and everything that it wrote is where the VM is.
func TestMigration_NetworkCutAfterCommit(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, test := range map[string]struct{ done, shared bool }{
		"before the switchover": {}, "before its response": {done: true},
		"before the switchover, shared disks": {shared: true}, "before its response, shared disks": {done: true, shared: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.shared = test.shared
			h.arrival.Switchover, h.arrival.Ask, h.departure.Switchover = 4*time.Second, time.Second, 8*time.Second
			if test.done {
				h.departure.Switchover = waitTimeout // the source does not ask before a slow target
			}
			cable := h.lay()
			source := h.source()
			here := source.counts()
			here.numbers(10)
			target := h.target("web-2")
			h.names(func(int) *member { return target })
			var once sync.Once // a pending request arrives when the cable is repaired
			cutting := func(us *vmpb.HypervisorID) error {
				if us.GetPodName() != "web-2" {
					return nil
				}
				once.Do(func() { cable.cut(true) })
				return context.Canceled
			}
			h.controller.Change(func(a *authority) {
				a.migrate = true
				if test.done {
					a.after = cutting
				} else {
					a.before = cutting
				}
			})
			if test.done {
				source.wantEnd(vmpb.EndTerminated)
				here.toTheEnd()
				target.wantEnd(vmpb.EndNotArrived)
				if holder := h.controller.Holder(); holder.GetPodName() != "web-2" {
					t.Errorf("authoritative: %v", holder)
				}
				target.wantAll(here.last)
				return
			}
			target.wantEnd(vmpb.EndNotArrived)
			h.awaitReturn(source)
			cable.cut(false)
			h.migratesAgain(source, here)
		})
	}
}

// awaitReturn waits until a source has its VM back under another run than its first one.
func (h *testCluster) awaitReturn(source *member) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	first := h.controller.Runs()[0].GetRunId()
	_, err := h.controller.AwaitReport(ctx, func(report *vmpb.ReportStateRequest) bool {
		us := report.GetUs()
		return us.GetPodName() == source.pod && us.GetRunId() > first && report.GetState() == vmpb.ReportStateRequest_STATE_RUNNING
	})
	must(h.t, err)
}
