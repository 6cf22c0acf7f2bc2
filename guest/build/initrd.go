package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/millwright-dev/millwright/guest/cpio"
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
	files := []cpio.File{
		{Path: "dev", Mode: cpio.Folder | 0o755},
		{Path: "dev/console", Mode: cpio.Character | 0o600, Device: [2]uint32{5, 1}},
		{Path: "proc", Mode: cpio.Folder | 0o555},
		{Path: "sys", Mode: cpio.Folder | 0o555},
		{Path: "seed", Mode: cpio.Folder | 0o755},
		{Path: "init", Mode: cpio.Regular | 0o755, Content: program},
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
		files = append(files, cpio.File{
			Path: fmt.Sprintf("%s/%02d-%s", modules, i, filepath.Base(module)),
			Mode: cpio.Regular | 0o644, Content: content,
		})
	}
	return writeArchive(path, files)
}

func writeArchive(path string, files []cpio.File) (err error) {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buffered := bufio.NewWriterSize(out, 1<<20)
	if err := cpio.Write(buffered, files); err != nil {
		return err
	}
	return buffered.Flush()
}
