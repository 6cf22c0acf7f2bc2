package helpers

import "github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"

// ResourcesTrackerInterface looks for what VMs left behind at a provider.
type ResourcesTrackerInterface interface {
	// InitializeResourcesTracker is called once, before all others, with the class of the VMs, the data of
	// its Secret, and the name of the target cluster. What it finds then is not of the suite.
	InitializeResourcesTracker(machineClass *v1alpha1.MachineClass, secretData map[string][]byte, clusterName string) error
	// IsOrphanedResourcesAvailable reports whether there are VMs, disks or network interfaces of the
	// suite without a Machine.
	IsOrphanedResourcesAvailable() bool
}
