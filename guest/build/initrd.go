package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/u-root/u-root/pkg/cpio"

	"github.com/millwright-dev/millwright/guest/kmod"
)

// Where the guest's program finds its modules: numbered in the order of loading.
const modules = "modules"

// writeInitrd packs init, the modules, the console that the kernel opens for init,
// and the folders that init mounts on.
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
	loaded, err := kmod.Ordered(filepath.Join(in.kernel, "lib", "modules"), kmod.Wanted)
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

// writeArchive writes a cpio archive of the form "newc", which the kernel unpacks. The
// same files give the same bytes: there are no times, owners or inode numbers in it.
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
