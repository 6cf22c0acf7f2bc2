// Package provider finds resources that VMs have left behind.
package provider

import (
	"encoding/json"
	"path/filepath"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"

	"github.com/millwright-dev/millwright/examples/mcm-provider/pkg/folder"
)

// ResourcesTrackerImpl finds VMs in the directory of a class.
type ResourcesTrackerImpl struct {
	directory string
}

// InitializeResourcesTracker reads the directory from the class.
func (r *ResourcesTrackerImpl) InitializeResourcesTracker(machineClass *v1alpha1.MachineClass, _ map[string][]byte, _ string) error {
	spec := &folder.ProviderSpec{}
	if err := json.Unmarshal(machineClass.ProviderSpec.Raw, spec); err != nil {
		return err
	}
	r.directory = spec.Directory
	return nil
}

// IsOrphanedResourcesAvailable reports whether any VMs exist.
func (r *ResourcesTrackerImpl) IsOrphanedResourcesAvailable() bool {
	files, err := filepath.Glob(filepath.Join(r.directory, "*"+folder.Extension))
	return err != nil || len(files) > 0
}
