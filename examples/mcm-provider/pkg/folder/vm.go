package folder

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
)

// vm is a file in the directory.
type vm struct {
	ID          string            `json:"id"`
	Namespace   string            `json:"namespace"`
	Machine     string            `json:"machine"`
	Size        string            `json:"size"`
	Tags        map[string]string `json:"tags"`
	Initialized bool              `json:"initialized"`

	// file is the name of the file.
	file string
}

// Extension is the extension of files that represent VMs.
const Extension = ".vm"

// cloud is a directory, which acts as the API of this provider. Each method call is a request to it.
type cloud struct{ spec *ProviderSpec }

func (c cloud) path(file string) string { return filepath.Join(c.spec.Directory, file) }

// create creates the VM of a machine, or returns the existing one. The name of its file consists of the names of
// cluster and machine, so only one exists even if several processes create it.
func (c cloud) create(machine *v1alpha1.Machine) (v *vm, err error) {
	defer record("create", &err)()
	file := strings.Join([]string{c.spec.cluster(), machine.Namespace, machine.Name}, "_") + Extension
	v = &vm{ID: rand.Text(), Namespace: machine.Namespace, Machine: machine.Name, Size: c.spec.Size, Tags: c.spec.Tags, file: file}
	draft, err := c.draft(v)
	if err != nil {
		return nil, err
	}
	defer os.Remove(draft)
	switch err = os.Link(draft, c.path(file)); {
	case err == nil:
		return v, nil
	case !errors.Is(err, fs.ErrExist):
		return nil, status.WrapError(codes.Unavailable, "cannot write the VM: "+err.Error(), err)
	}
	if v, err = c.read(file); err != nil { // fails if the VM is deleted at the same time; a retry creates it
		return nil, status.WrapError(codes.Unavailable, "cannot read the VM: "+err.Error(), err)
	}
	return v, nil
}

// change updates an existing VM.
func (c cloud) change(v *vm) (err error) {
	defer record("change", &err)()
	draft, err := c.draft(v)
	if err != nil {
		return err
	}
	if err = os.Rename(draft, c.path(v.file)); err != nil {
		return status.WrapError(codes.Unavailable, "cannot write the VM: "+err.Error(), err)
	}
	return nil
}

// draft writes a VM to a file with a temporary name.
func (c cloud) draft(v *vm) (string, error) {
	content, err := json.Marshal(v)
	if err == nil {
		err = os.MkdirAll(c.spec.Directory, 0o700)
	}
	if err != nil {
		return "", status.WrapError(codes.Internal, "cannot encode the VM: "+err.Error(), err)
	}
	draft := c.path(rand.Text() + ".new")
	if err = os.WriteFile(draft, content, 0o600); err != nil {
		return "", status.WrapError(codes.Unavailable, "cannot write the VM: "+err.Error(), err)
	}
	return draft, nil
}

// remove deletes a VM.
func (c cloud) remove(v *vm) (err error) {
	defer record("remove", &err)()
	if err = os.Remove(c.path(v.file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return status.WrapError(codes.Unavailable, "cannot delete the VM: "+err.Error(), err)
	}
	return nil
}

// list returns all VMs, including those of other clusters.
func (c cloud) list() (found []*vm, err error) {
	defer record("list", &err)()
	entries, err := os.ReadDir(c.spec.Directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, status.WrapError(codes.Unavailable, "cannot list VMs: "+err.Error(), err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), Extension) {
			continue
		}
		v, err := c.read(entry.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was deleted in the meantime
		case err != nil:
			return nil, status.WrapError(codes.Unavailable, "cannot list VMs: "+err.Error(), err)
		default:
			found = append(found, v)
		}
	}
	return found, nil
}

func (c cloud) read(file string) (*vm, error) {
	content, err := os.ReadFile(c.path(file))
	if err != nil {
		return nil, err
	}
	v := &vm{file: file}
	return v, json.Unmarshal(content, v)
}

// owns reports whether a VM has the tags of the class.
func (c cloud) owns(v *vm) bool {
	for tag, value := range c.spec.Tags {
		if v.Tags[tag] != value {
			return false
		}
	}
	return true
}
