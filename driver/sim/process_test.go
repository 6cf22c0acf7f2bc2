package sim_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/sim"
)

// workerDir is the environment variable that makes this test binary run as a worker instead of running tests.
const workerDir = "SIM_TEST_WORKER_DIR"

// workerMachines is the number of machines for which workers compete.
const workerMachines = 4

func TestMain(m *testing.M) {
	if dir := os.Getenv(workerDir); dir != "" {
		work(dir)
	}
	os.Exit(m.Run())
}

// work creates and deletes the same few VMs until it is killed. It prints a line for each round.
func work(dir string) {
	cloud, err := sim.OpenCloud(dir, sim.CloudOptions{})
	check(err)
	d := sim.New(sim.Config{Cloud: cloud})
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "small"}}
	class.ProviderSpec.Raw = fmt.Appendf(nil, `{"capacity": %d}`, workerMachines)
	for round := 0; ; round++ {
		for i := range workerMachines {
			m := machine("m-"+strconv.Itoa(i), "")
			resp, err := d.CreateMachine(context.Background(), &driver.CreateMachineRequest{Machine: m, MachineClass: class})
			check(err)
			if (round+i)%3 == 0 {
				m.Spec.ProviderID = resp.ProviderID
				_, err := d.DeleteMachine(context.Background(), &driver.DeleteMachineRequest{Machine: m, MachineClass: class})
				check(err)
			}
		}
		fmt.Println("round", round)
	}
}

// check exits the worker on an error, which the test notices.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// TestCloud_SurvivesKilledProcesses runs two processes on one cloud and kills them at random points. The cloud stays consistent,
// and no machine ever has two VMs.
func TestCloud_SurvivesKilledProcesses(t *testing.T) {
	dir := t.TempDir()
	for kill := range 5 {
		a, b := startWorker(t, dir), startWorker(t, dir)
		for range 3 + kill {
			a.awaitRound()
			b.awaitRound()
		}
		a.kill()
		b.awaitRound()
		b.kill()
		checkCloud(t, dir)
	}
}

// checkCloud checks the state of the cloud and uses the cloud.
func checkCloud(t *testing.T, dir string) {
	t.Helper()
	w := newTestDriver(t, sim.Config{Cloud: openCloud(t, dir)}, object{"capacity": workerMachines})
	seen := map[string]bool{}
	for _, v := range w.vms() {
		if seen[v.Machine] {
			t.Fatalf("got two VMs for %s", v.Machine)
		}
		seen[v.Machine] = true
	}
	for i := range workerMachines {
		w.mustCreate("m-" + strconv.Itoa(i))
	}
	histories := w.histories()
	if len(histories) != workerMachines {
		t.Errorf("got %d machines in the journal, want %d", len(histories), workerMachines)
	}
	for m, h := range histories {
		if h.MostAtOnce != 1 || h.Left != 1 {
			t.Errorf("history of %s: got at most %d VMs at the same time, %d left", m, h.MostAtOnce, h.Left)
		}
	}
}

type worker struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Scanner
}

func startWorker(t *testing.T, dir string) worker {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := worker{t: t, cmd: exec.Command(self)}
	w.cmd.Env = append(os.Environ(), workerDir+"="+dir)
	w.cmd.Stderr = os.Stderr
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.out = bufio.NewScanner(out)
	t.Cleanup(w.kill)
	return w
}

// awaitRound waits until the worker has completed another round.
func (w worker) awaitRound() {
	w.t.Helper()
	if !w.out.Scan() {
		w.t.Fatalf("the worker exited: %v", w.out.Err())
	}
}

// kill terminates the worker with SIGKILL. A second call does nothing.
func (w worker) kill() {
	if w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	}
}
