package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// usedModules are the modules that the guest uses, without dependencies, in the order of
// loading: the network's driver comes early, as the guest waits for its link first.
var usedModules = []string{
	"virtio_pci", "virtio_rng", "virtio_net", "virtio_blk", "qemu_fw_cfg", "isofs", "virtio_console", "evdev", "button",
}

// orderedModules returns the paths of the given modules below a directory and of their dependencies, each after
// its dependencies. Compressed modules are not supported.
func orderedModules(dir string, used []string) ([]string, error) {
	found, err := find(dir)
	if err != nil {
		return nil, fmt.Errorf("finding kernel modules: %w", err)
	}
	sorter := sorter{files: found, done: map[string]bool{}}
	for _, name := range used {
		if err := sorter.add(name); err != nil {
			return nil, err
		}
	}
	return sorter.ordered, nil
}

// find returns the files by module name, in which dashes are replaced by underscores.
func find(dir string) (map[string]string, error) {
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
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
	s.done[name] = true
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

// dependencies reads the section .modinfo, which consists of zero-terminated "key=value" texts.
func dependencies(module []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
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
