package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/millwright-dev/millwright/driver"
)

// The layouts of a directory. The journal has a line with the version of its layout; older programs did not write it.
//
//	1: a file for each VM, vms/NAMESPACE/MACHINE/NUMBER-HASH.json or, once it is removed, .gone. The file zones has
//	   the zones, and the journal has only entries. Until the API group got its name, a VM had the field "face".
//	2: the journal contains everything.
const layoutVersion = 2

const (
	oldVMs   = "vms"
	oldZones = "zones"
	// oldSuffix is the suffix of files of layout 1 that were converted.
	oldSuffix = ".converted"
)

// oldAPIGroups are the API groups by their values in layout 1.
var oldAPIGroups = map[string]string{"capi": driver.APIGroupClusterAPI}

// migrate converts an older layout to the current one, and records the version. It returns an error for a version that
// this program does not know. The store must be locked.
func (s *store) migrate(dir string) error {
	switch _, err := os.Stat(filepath.Join(dir, oldVMs)); {
	case s.version > layoutVersion:
		return fmt.Errorf("%s has the layout version %d, but this program knows only versions up to %d; use the newer program", dir, s.version, layoutVersion)
	case s.version == layoutVersion && errors.Is(err, fs.ErrNotExist):
		return nil
	case s.version < layoutVersion:
		if err := s.convert(dir); err != nil {
			return fmt.Errorf("converting %s from an older layout: %w", dir, err)
		}
	}
	for _, name := range []string{oldVMs, oldZones} { // after the conversion is recorded
		path := filepath.Join(dir, name)
		if err := os.Rename(path, path+oldSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// convert appends the content of layout 1 to the journal, and then the version. If the process is killed in between,
// the next one repeats the conversion, which does not change VMs that are already in the journal.
func (s *store) convert(dir string) error {
	changes, err := oldChanges(dir)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if s.torn {
		text.WriteByte('\n')
	}
	for _, c := range append(changes, change{Version: layoutVersion}) {
		line, err := json.Marshal(c)
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	if _, err := s.file.Write(text.Bytes()); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	return s.catchUp()
}

// oldVM is a VM of layout 1.
type oldVM struct {
	VM
	Face string `json:"face"`
}

// oldChanges returns the changes that result in the VMs and zones of layout 1, in the order of creation. Removed VMs are
// created and deleted, so that their provider IDs are not reused.
func oldChanges(dir string) ([]change, error) {
	root := os.DirFS(dir)
	paths, err := fs.Glob(root, oldVMs+"/*/*/*")
	if err != nil {
		return nil, err
	}
	slices.SortFunc(paths, func(a, b string) int {
		return cmp.Or(strings.Compare(filepath.Dir(a), filepath.Dir(b)), cmp.Compare(oldNumber(a), oldNumber(b)))
	})
	var changes []change
	for _, path := range paths {
		data, err := fs.ReadFile(root, path)
		if err != nil {
			return nil, err
		}
		var old oldVM
		if err := json.Unmarshal(data, &old); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		group, known := oldAPIGroups[old.Face]
		if old.Face != "" && !known {
			return nil, fmt.Errorf("%s has the unknown face %q", path, old.Face)
		}
		old.APIGroup = cmp.Or(old.APIGroup, group)
		changes = append(changes, change{VM: &old.VM})
		if filepath.Ext(path) == ".gone" {
			changes = append(changes, change{Entry: effectOn(old.VM, Deleted)})
		}
	}
	data, err := fs.ReadFile(root, oldZones)
	if errors.Is(err, fs.ErrNotExist) {
		return changes, nil
	}
	zones := change{Zones: []string{}}
	if err == nil {
		err = json.Unmarshal(data, &zones.Zones)
	}
	return append(changes, zones), err
}

// oldNumber returns the number of a VM from the name of its file, NUMBER-HASH.
func oldNumber(path string) int {
	text, _, _ := strings.Cut(filepath.Base(path), "-")
	number, _ := strconv.Atoi(text)
	return number
}
