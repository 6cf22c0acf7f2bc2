package fleet

import (
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// suspend stops a process while it does not hold the lock of the simulated VMs of a cluster. Otherwise, it would also stop the
// other processes.
func (w *world) suspend(process *program.Process, clusters ...*cluster) {
	w.Helper()
	for range 10 {
		w.signal(process, syscall.SIGSTOP)
		read := make(chan struct{})
		go func() {
			defer close(read)
			for _, c := range clusters {
				_, _ = c.cloud.VMs() // it waits for the lock
			}
		}()
		select {
		case <-read:
			return
		case <-time.After(2 * time.Second):
			w.signal(process, syscall.SIGCONT)
		}
		<-read
	}
	w.Fatal("the process always holds the lock of the simulated VMs")
}

func (w *world) signal(process *program.Process, signal syscall.Signal) {
	w.Helper()
	if err := syscall.Kill(process.PID(), signal); err != nil {
		w.Fatal(err)
	}
}

// TestFleet_SuspendedReplica suspends the replica that serves a namespace in the middle of a rollout, until the other one has
// taken over, and then resumes it. The rollout completes with one VM for each Machine.
func TestFleet_SuspendedReplica(t *testing.T) {
	tier.All(t)
	// Calls are slow, so that some are in progress when a process is suspended.
	const machines, slow = 8, `{"latency":"1s","joinDelay":"1s","tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`
	w := newWorld(t)
	c := w.cluster("cluster", w.Target)
	processes := []*program.Process{w.replica(leases("8s", "6s")...), w.replica(leases("8s", "6s")...)}
	c.pool(machines, slow)
	w.eventually(c.settled)

	before := c.created()
	c.update("2")
	var serving *program.Process
	w.eventually(func(g gomega.Gomega) {
		now := c.created()
		for _, process := range processes {
			if now[process.PID()] > before[process.PID()] {
				serving = process
			}
		}
		g.Expect(serving).NotTo(gomega.BeNil(), "no process has begun the rollout")
	})
	w.suspend(serving, c)
	other := processes[0]
	if other == serving {
		other = processes[1]
	}
	before = c.created()
	w.eventually(func(g gomega.Gomega) {
		g.Expect(c.created()[other.PID()]).To(gomega.BeNumerically(">", before[other.PID()]), "VMs that the other replica created")
	})
	deployment := c.deployment()
	if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment); err != nil {
		t.Fatal(err)
	}
	if deployment.Status.UpdatedReplicas == machines {
		t.Error("the rollout was complete before the replica was resumed")
	}
	w.signal(serving, syscall.SIGCONT)
	w.eventually(c.settled)

	for _, process := range processes {
		process.Stop()
	}
	c.wantOneVMEach()
}
