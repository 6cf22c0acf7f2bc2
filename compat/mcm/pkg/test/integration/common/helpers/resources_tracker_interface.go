package helpers

import "github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"

// ResourcesTrackerInterface finds resources that VMs have left behind at a provider.
type ResourcesTrackerInterface interface {
	// InitializeResourcesTracker is called once, before all other methods, with the class of the VMs, the data of
	// its Secret, and the name of the target cluster. Resources that exist at that time do not belong to the suite.
	InitializeResourcesTracker(machineClass *v1alpha1.MachineClass, secretData map[string][]byte, clusterName string) error
	// IsOrphanedResourcesAvailable reports whether the suite has left VMs, disks or network interfaces without a
	// Machine.
	IsOrphanedResourcesAvailable() bool
}
