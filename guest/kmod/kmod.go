// Package kmod lists the kernel modules that the guest needs, in the order of loading.
package kmod

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Wanted are the modules that the guest uses, without what they depend on: the
// metadata, the virtio bus and its devices, the seed's file system, the power button.
// The order is that of loading: the network's driver comes early, as its link is what
// the guest waits for first.
var Wanted = []string{
	"virtio_pci", "virtio_rng", "virtio_net", "virtio_blk", "qemu_fw_cfg", "isofs", "virtio_console", "evdev", "button",
}

// Ordered returns the paths of the wanted modules below a folder and of all that they
// depend on, each after its dependencies. Modules that are compressed or not there are
// errors.
func Ordered(folder string, wanted []string) ([]string, error) {
	found, err := find(folder)
	if err != nil {
		return nil, fmt.Errorf("looking for kernel modules: %w", err)
	}
	sorter := sorter{files: found, done: map[string]bool{}}
	for _, name := range wanted {
		if err := sorter.add(name); err != nil {
			return nil, err
		}
	}
	return sorter.ordered, nil
}

// find maps the names of modules to their files. The kernel takes dashes in a file's
// name for underscores.
func find(folder string) (map[string]string, error) {
	found := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if name, is := strings.CutSuffix(filepath.Base(path), ".ko"); err == nil && is && entry.Type().IsRegular() {
			found[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	return found, err
}

type sorter struct {
	files   map[string]string
	done    map[string]bool
	ordered []string
}

func (s *sorter) add(name string) error {
	if s.done[name] {
		return nil
	}
	s.done[name] = true // a circle ends here, and modules have none
	path, ok := s.files[name]
	if !ok {
		return fmt.Errorf("the kernel has no module %s", name)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	needed, err := dependencies(content)
	if err != nil {
		return fmt.Errorf("reading the dependencies of module %s: %w", name, err)
	}
	for _, dependency := range needed {
		if err := s.add(dependency); err != nil {
			return fmt.Errorf("%w, needed by %s", err, name)
		}
	}
	s.ordered = append(s.ordered, path)
	return nil
}

// dependencies reads what a module says of itself: "key=value" texts, each ended by a
// zero byte, in the section .modinfo.
func dependencies(module []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("there is no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	var names []string
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, is := strings.CutPrefix(string(entry), "depends="); is && list != "" {
			names = append(names, strings.Split(strings.ReplaceAll(list, "-", "_"), ",")...)
		}
	}
	return names, nil
}
