package vm

import (
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// network is a secondary network of the VMs of a class. It has no Ethernet address, because each VM needs its own.
type network struct {
	Name   string                   `json:"name"`
	Multus vmv1alpha1.MultusNetwork `json:"multus"`
}

const (
	// networksField is the JSON name of providerSpec.Networks.
	networksField = "networks"
	maxNetworks   = 8 // as in VirtualMachines
)

// networkName accepts the names that VirtualMachines accept.
var networkName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)

func (s *providerSpec) validateNetworks() field.ErrorList {
	var errs field.ErrorList
	path := specPath.Child(networksField)
	if len(s.Networks) > maxNetworks {
		errs = append(errs, field.TooMany(path, len(s.Networks), maxNetworks))
	}
	names := map[string]bool{}
	for i, network := range s.Networks {
		at := path.Index(i)
		if len(validation.IsDNS1123Label(network.Name)) > 0 {
			errs = append(errs, field.Invalid(at.Child("name"), network.Name, "must consist of 1 to 63 lower-case letters, digits and hyphens"))
		}
		if names[network.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), network.Name))
		}
		names[network.Name] = true
		if name := network.Multus.NetworkName; !networkName.MatchString(name) {
			errs = append(errs, field.Invalid(at.Child("multus", "networkName"), name, "must be NAMESPACE/NAME or NAME"))
		}
	}
	return errs
}

func (s *providerSpec) networks() []vmv1alpha1.Network {
	var networks []vmv1alpha1.Network
	for _, network := range s.Networks {
		networks = append(networks, vmv1alpha1.Network{Name: network.Name, Multus: network.Multus})
	}
	return networks
}
