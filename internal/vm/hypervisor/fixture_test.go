package hypervisor_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/image"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fixture is a hypervisor with fakes, in a synctest bubble: time passes only while all goroutines wait.
type fixture struct {
	t          *testing.T
	controller *fakeController
	machines   *fakeMachines
	images     *images
	config     hypervisor.Config
}

// withFixture runs a test.
func withFixture(t *testing.T, run func(*fixture)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{t: t, controller: newFakeController(), machines: &fakeMachines{}, images: &images{}}
		t.Cleanup(w.controller.Close)
		w.config = hypervisor.Config{
			Spec:      validSpec(),
			Paths:     hypervisor.Paths{RootDisk: filepath.Join(dir, "disk.img"), Run: filepath.Join(dir, "run")},
			Machines:  w.machines,
			WriteDisk: w.images.WriteDisk, Fetch: w.images.Fetch,
			Connect: w.controller.Connect,
		}
		run(w)
	})
}

func validSpec() *vmpb.VMSpec {
	return &vmpb.VMSpec{
		Name: "web", Namespace: "default", PodName: "web-1", Uuid: "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21",
		Mode: vmpb.VMSpec_SM_RUN, LeaseMode: vmpb.LeaseMode_LM_STORAGE_LOCKING,
		ControllerEndpoint: "controller:1", RootDiskBytes: 1 << 20,
	}
}

// preparing adds an initial image to the VM.
func (w *fixture) preparing() {
	w.config.Spec.Mode = vmpb.VMSpec_SM_PREPARE_IMAGE
	w.config.Spec.InitialImage = &vmpb.InitialImage{Url: "http://images/guest.raw"}
}

// process is a hypervisor that was started.
type process struct {
	*fixture
	term context.CancelFunc
	// local is the listener of its local services.
	local *bufconn.Listener
	done  chan struct{}
	end   vmpb.Termination
}

// start runs a hypervisor until nothing more happens without the passage of time. The hypervisor is asked to
// terminate at the end of the test.
func (w *fixture) start() *process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{fixture: w, term: cancel, local: bufconn.Listen(1 << 16), done: make(chan struct{})}
	config := w.config
	go func() {
		defer close(p.done)
		p.end = hypervisor.RunOn(ctx, config, p.local)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-p.done
	})
	synctest.Wait()
	return p
}

// wantEnd waits for the termination, however long it takes, and checks its reason.
func (p *process) wantEnd(reason string) vmpb.Termination {
	p.t.Helper()
	<-p.done
	if p.end.Reason != reason {
		p.t.Errorf("the hypervisor terminated with %+v, want %s", p.end, reason)
	}
	return p.end
}

// wantAlive fails the test if the process has terminated.
func (p *process) wantAlive() {
	p.t.Helper()
	select {
	case <-p.done:
		p.t.Fatalf("the hypervisor terminated: %+v", p.end)
	default:
	}
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d) // in the bubble, this returns immediately
	synctest.Wait()
}

// machine returns the machine that was started most recently.
func (w *fixture) machine() *fakeMachine {
	w.t.Helper()
	started := w.machines.Started()
	if len(started) == 0 {
		w.t.Fatal("no machine started")
	}
	return started[len(started)-1]
}

// authorizedStates are the states after STATE_WAITING, which may be skipped if there is an immediate response.
func (w *fixture) authorizedStates() []string {
	states := w.states()
	if len(states) > 0 && states[0] == "STATE_WAITING" {
		return states[1:]
	}
	return states
}

// states returns the reported states, without repetitions.
func (w *fixture) states() []string {
	var states []string
	for _, report := range w.controller.Reports() {
		state := report.GetState().String()
		if len(states) == 0 || states[len(states)-1] != state {
			states = append(states, state)
		}
	}
	return states
}

func (w *fixture) disk() string {
	w.t.Helper()
	content, err := os.ReadFile(w.config.Paths.RootDisk)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	must(w.t, err)
	return string(content)
}

const imageContent = "the initial image, which is longer than a mark"

// images writes imageContent in the steps of a real download.
type images struct {
	// at, if set, is called before each step. Its error is the error of the step.
	at func(step string) error
	// pieces is how often progress is made before the last step, every 100 ms.
	pieces int
	// retried is a failure that is reported before the first step.
	retried error
	written int
	fetched []string
}

// The steps of WriteDisk.
var writeSteps = []string{"download", "write", "sync", "rename", "return"}

func (i *images) step(name string) error {
	if i.at == nil {
		return nil
	}
	return i.at(name)
}

func (i *images) WriteDisk(_ context.Context, _ image.Source, target image.Target, progress image.Options) error {
	partial := target.Path + ".partial"
	content := []byte(imageContent)
	if i.retried != nil {
		progress.OnRetry(i.retried)
		time.Sleep(time.Second) // in the bubble
	}
	for _, name := range writeSteps {
		if err := i.step(name); err != nil {
			return err
		}
		var err error
		switch name {
		case "download":
			progress.Progress(0, int64(len(content)))
			err = os.WriteFile(partial, content[:4], 0o600)
		case "write":
			for piece := range i.pieces {
				progress.Progress(int64(piece), int64(len(content)))
				time.Sleep(100 * time.Millisecond) // in the bubble
			}
			progress.Progress(int64(len(content)), int64(len(content)))
			err = os.WriteFile(partial, content, 0o600)
		case "rename":
			i.written++
			err = os.Rename(partial, target.Path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (i *images) Fetch(_ context.Context, source image.Source, path string, _ image.Options) error {
	i.fetched = append(i.fetched, source.URL)
	if err := i.step(source.URL); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(source.URL), 0o600)
}
