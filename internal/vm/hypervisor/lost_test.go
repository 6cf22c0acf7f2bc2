package hypervisor_test

import (
	"os"
	"testing"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// A disk that has been complete is never created again, whether the file is missing or empty, or the whole volume
// is a different one.
func TestDisk_MissingIsNotCreatedAgain(t *testing.T) {
	again := func(w *fixture) {} // the next process in the Pod, with the same specification
	later := func(w *fixture) {  // the next Pod
		w.config.Paths.Run += "-later"
		w.config.Spec.Mode, w.config.Spec.RootDiskExists = vmpb.VMSpec_SM_RUN, true
	}
	for name, c := range map[string]struct {
		image  bool
		next   func(*fixture)
		vanish func(path string) error
	}{
		"same Pod, with an image": {true, again, os.Remove},
		"same Pod":                {false, again, os.Remove},
		"next Pod, with an image": {true, later, os.Remove},
		"next Pod":                {false, later, os.Remove},
		"empty file":              {false, later, func(path string) error { return os.Truncate(path, 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				if c.image {
					w.preparing()
				}
				first := w.start()
				first.wantAlive()
				if reports := w.controller.Reports(); !reports[len(reports)-1].GetImagePrepared() {
					t.Error("the controller did not receive the report of the disk")
				}
				first.term()
				first.wantEnd(vmpb.EndStopped)
				must(t, c.vanish(w.config.Paths.RootDisk))
				c.next(w)
				second := w.start()
				if len(w.machines.Started()) != 1 || w.disk() != "" {
					t.Fatal("started the guest on another disk")
				}
				second.wantEnd(vmpb.EndDiskLost)
			})
		})
	}
}
