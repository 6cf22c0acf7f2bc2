// Command build creates the files that a guest boots, from the content of a kernel package and the guest's
// program. hack/guest.sh runs it.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/u-root/u-root/pkg/cpio"
)

// commandLine of the kernel. A panic restarts the machine immediately (panic=-1), through a triple fault
// (reboot=t). Without trust in the processor's random numbers, a guest without virtio-rng would wait for
// entropy. The kernel's timer test is disabled (no_timer_check), since it may fail and panic on a busy host.
// With several emulated processors, the kernel would not trust their counters and read the time from a slow
// device instead (tsc=reliable). Its tests of ciphers take an eighth of a boot without KVM (cryptomgr.notests).
const commandLine = "console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=on no_timer_check tsc=reliable cryptomgr.notests"

type inputs struct {
	kernel  string // content of the kernel's package
	program string // the guest's init
	mbr     string // syslinux' boot code
	output  string // directory for the files
}

func main() {
	var in inputs
	flag.StringVar(&in.kernel, "kernel", "", "`directory` with the content of the kernel's package")
	flag.StringVar(&in.program, "init", "", "the guest's `program`, linked statically")
	flag.StringVar(&in.mbr, "mbr", "", "`file` with syslinux' code for the master boot record")
	flag.StringVar(&in.output, "output", "", "`directory` for the files")
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
	kernel, err := extractKernel(image)
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

// readKernel finds the only kernel of a package.
func readKernel(dir string) (string, []byte, error) {
	found, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil {
		return "", nil, err
	}
	if len(found) != 1 {
		return "", nil, fmt.Errorf("found %d kernels in %s, expected one", len(found), dir)
	}
	image, err := os.ReadFile(found[0])
	return found[0], image, err
}

// modules is the directory of the modules, which are numbered in loading order.
const modules = "modules"

// writeInitrd packs init, the modules, the console, and the directories on which init mounts file systems.
func writeInitrd(path string, in inputs) error {
	program, err := os.ReadFile(in.program)
	if err != nil {
		return err
	}
	files := []cpio.Record{
		cpio.Directory("dev", 0o755),
		cpio.CharDev("dev/console", 0o600, 5, 1),
		cpio.Directory("proc", 0o555),
		cpio.Directory("sys", 0o555),
		cpio.Directory("seed", 0o755),
		cpio.StaticFile("init", string(program), 0o755),
		cpio.Directory(modules, 0o755),
	}
	loaded, err := orderedModules(filepath.Join(in.kernel, "lib", "modules"), usedModules)
	if err != nil {
		return err
	}
	for i, module := range loaded {
		content, err := os.ReadFile(module)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%s/%02d-%s", modules, i, filepath.Base(module))
		files = append(files, cpio.StaticFile(name, string(content), 0o644))
	}
	return writeArchive(path, files)
}

// writeArchive writes a cpio archive in the format "newc", reproducibly: without times, owners
// and inode numbers.
func writeArchive(path string, files []cpio.Record) (err error) {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buffered := bufio.NewWriterSize(out, 1<<20)
	if err := cpio.WriteRecords(cpio.Newc.Writer(buffered), append(files, cpio.TrailerRecord)); err != nil {
		return err
	}
	return buffered.Flush()
}
