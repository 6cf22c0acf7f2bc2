package example

import (
	"strings"

	"sigs.k8s.io/json"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Spec is the providerSpec of a class.
type Spec struct {
	// Size of the VMs: small or large.
	Size string `json:"size"`
	// Tags of the VMs. One key must start with kubernetes.io/cluster/ and name the cluster; another must start with
	// kubernetes.io/role/.
	Tags map[string]string `json:"tags"`
}

const clusterPrefix = "kubernetes.io/cluster/"

// parse decodes and validates the providerSpec of a class.
func parse(class *v1alpha1.MachineClass) (*Spec, error) {
	spec := &Spec{}
	strict, err := json.UnmarshalStrict(class.ProviderSpec.Raw, spec)
	switch {
	case err != nil:
		return nil, status.WrapError(codes.InvalidArgument, "providerSpec: "+err.Error(), err)
	case len(strict) > 0:
		return nil, status.WrapError(codes.InvalidArgument, "providerSpec: "+strict[0].Error(), strict[0])
	case spec.Size != "small" && spec.Size != "large":
		return nil, status.Error(codes.InvalidArgument, "providerSpec.size: must be small or large")
	case spec.cluster() == "" || !spec.has("kubernetes.io/role/"):
		return nil, status.Error(codes.InvalidArgument, "providerSpec.tags: must have a key that starts with kubernetes.io/cluster/ and one that starts with kubernetes.io/role/")
	}
	return spec, nil
}

// parseFor is like parse, for a request for a machine, which must have a name.
func parseFor(machine *v1alpha1.Machine, class *v1alpha1.MachineClass) (*Spec, error) {
	if machine.Name == "" {
		return nil, status.Error(codes.InvalidArgument, "the machine has no name")
	}
	return parse(class)
}

func (s *Spec) has(prefix string) bool {
	for tag := range s.Tags {
		if strings.HasPrefix(tag, prefix) && tag != prefix {
			return true
		}
	}
	return false
}

// cluster returns the name of the cluster in the tags.
func (s *Spec) cluster() string {
	cluster := ""
	for tag := range s.Tags {
		if name, ok := strings.CutPrefix(tag, clusterPrefix); ok && (cluster == "" || name < cluster) {
			cluster = name
		}
	}
	return cluster
}

// name returns the name of a machine's VM. It differs between clusters.
func (s *Spec) name(machine *v1alpha1.Machine) string {
	return s.cluster() + "/" + key(machine)
}
