package pod

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// driverImage is the image of a driver in a separate container.
const driverImage = "registry.example.com/driver"

// driverLayout builds the image of a driver, and returns the directory of its layout.
func (p *place) driverLayout() string {
	p.Helper()
	root, err := env.Sources()
	if err != nil {
		p.Fatal(err)
	}
	dir := p.TempDir()
	layout, file := filepath.Join(dir, "image"), filepath.Join(dir, "driver")
	for _, args := range [][]string{
		{"-C", root, "build", "-o", file, "./test/suites/pod/driver"},
		{"-C", filepath.Join(root, "hack", "image"), "run", ".", "--layout", layout, "--reference", driverImage + ":" + version, "linux/" + runtime.GOARCH + "=" + file},
	} {
		command := exec.CommandContext(p.Context(), "go", args...)
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-buildvcs=false -trimpath")
		if out, err := command.CombinedOutput(); err != nil {
			p.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	return layout
}

// drivesFromSidecar replaces the built-in driver of the Pods by one in a separate container. It creates Machines,
// and continues to do so after a crash.
func (p *place) drivesFromSidecar() {
	p.Helper()
	p.apply("one-pod", sidecarOverlay)
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.drivers()).To(gomega.HaveLen(2))
		g.Expect(p.processes()).To(gomega.HaveLen(4), "those of the Pods before are gone")
	})
	p.hasStandBy()
	p.isConfined(p.drivers())
	p.makesMachine("beside")
	for _, driver := range p.drivers() {
		if err := unix.Kill(driver.PID, unix.SIGKILL); err != nil {
			p.Fatal(err)
		}
	}
	p.makesMachine("again")
}

// drivers returns the processes of containers with a driver.
func (p *place) drivers() []program.Running {
	p.Helper()
	return program.Processes(p.T, "--installation="+p.env.Namespace, "--target=unix:")
}
