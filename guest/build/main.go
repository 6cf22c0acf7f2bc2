// Command build makes the files that a guest boots from out of a kernel package's
// content and the guest's program. hack/guest.sh runs it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/millwright-dev/millwright/guest/bzimage"
)

// commandLine is the kernel's. A panic restarts at once (panic=-1), through a triple
// fault (reboot=t), which takes no time. The random number generator may trust what
// the processor says, or a guest without virtio-rng would wait for entropy. Whether the
// timer's interrupts arrive is not tried (no_timer_check): on a busy host the trial may
// fail, with a panic if it does so often.
const commandLine = "console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=on no_timer_check"

type inputs struct {
	kernel  string // content of the kernel's package
	program string // the guest's init
	mbr     string // syslinux' boot code
	output  string // where the files go
}

func main() {
	var in inputs
	flag.StringVar(&in.kernel, "kernel", "", "`folder` with the content of the kernel's package")
	flag.StringVar(&in.program, "init", "", "the guest's `program`, linked statically")
	flag.StringVar(&in.mbr, "mbr", "", "`file` with syslinux' code for the master boot record")
	flag.StringVar(&in.output, "output", "", "`folder` for the files")
	flag.Parse()
	if err := build(in); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func build(in inputs) error {
	compressed, image, err := readKernel(in.kernel)
	if err != nil {
		return err
	}
	kernel, err := bzimage.Extract(image)
	if err != nil {
		return fmt.Errorf("unpacking %s: %w", compressed, err)
	}
	initrd := filepath.Join(in.output, "initrd")
	err = errors.Join(
		os.WriteFile(filepath.Join(in.output, "vmlinux"), kernel, 0o644),
		os.WriteFile(filepath.Join(in.output, "cmdline"), []byte(commandLine+"\n"), 0o644),
		writeInitrd(initrd, in),
	)
	if err != nil {
		return err
	}
	return disk{mbr: in.mbr, kernel: compressed, initrd: initrd}.write(filepath.Join(in.output, "boot.raw"))
}

// readKernel finds the one kernel of a package.
func readKernel(folder string) (string, []byte, error) {
	found, err := filepath.Glob(filepath.Join(folder, "boot", "vmlinuz-*"))
	if err != nil {
		return "", nil, err
	}
	if len(found) != 1 {
		return "", nil, fmt.Errorf("there are %d kernels in %s, not one", len(found), folder)
	}
	image, err := os.ReadFile(found[0])
	return found[0], image, err
}
