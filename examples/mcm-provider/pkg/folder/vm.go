package folder

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
)

// vm is a file in the folder.
type vm struct {
	ID          string            `json:"id"`
	Machine     string            `json:"machine"`
	Size        string            `json:"size"`
	Tags        map[string]string `json:"tags"`
	Initialized bool              `json:"initialized"`
}

// Extension is that of the files that are VMs.
const Extension = ".vm"

// cloud is a folder, the API of this provider. Each call of a method is a request to it.
type cloud struct{ spec *ProviderSpec }

func (c cloud) path(id string) string { return filepath.Join(c.spec.Folder, id+Extension) }

// put creates or changes a VM.
func (c cloud) put(v *vm) (err error) {
	defer record("put", &err)()
	content, err := json.Marshal(v)
	if err == nil {
		err = os.MkdirAll(c.spec.Folder, 0o700)
	}
	if err != nil {
		return status.WrapError(codes.Internal, "writing a VM: "+err.Error(), err)
	}
	draft := c.path(v.ID) + ".new"
	if err = os.WriteFile(draft, content, 0o600); err == nil {
		err = os.Rename(draft, c.path(v.ID))
	}
	if err != nil {
		return status.WrapError(codes.Unavailable, "writing a VM: "+err.Error(), err)
	}
	return nil
}

// remove deletes a VM.
func (c cloud) remove(id string) (err error) {
	defer record("remove", &err)()
	if err = os.Remove(c.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return status.WrapError(codes.Unavailable, "deleting a VM: "+err.Error(), err)
	}
	return nil
}

// list returns the VMs with the tags of the class.
func (c cloud) list() (found []*vm, err error) {
	defer record("list", &err)()
	entries, err := os.ReadDir(c.spec.Folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, status.WrapError(codes.Unavailable, "listing VMs: "+err.Error(), err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), Extension) {
			continue
		}
		v, err := c.read(strings.TrimSuffix(entry.Name(), Extension))
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was deleted meanwhile
		case err != nil:
			return nil, status.WrapError(codes.Unavailable, "listing VMs: "+err.Error(), err)
		case c.owns(v):
			found = append(found, v)
		}
	}
	return found, nil
}

func (c cloud) read(id string) (*vm, error) {
	content, err := os.ReadFile(c.path(id))
	if err != nil {
		return nil, err
	}
	v := &vm{}
	return v, json.Unmarshal(content, v)
}

// owns reports whether a VM has the tags of the class.
func (c cloud) owns(v *vm) bool {
	return !slices.ContainsFunc(slices.Collect(maps.Keys(c.spec.Tags)), func(tag string) bool {
		return v.Tags[tag] != c.spec.Tags[tag]
	})
}
