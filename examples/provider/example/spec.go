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
	// Tags of the VMs. One begins with kubernetes.io/cluster/ and names the cluster, one with
	// kubernetes.io/role/.
	Tags map[string]string `json:"tags"`
}

const clusterPrefix = "kubernetes.io/cluster/"

// parse reads and checks the providerSpec of a class.
func parse(class *v1alpha1.MachineClass) (*Spec, error) {
	spec := &Spec{}
	strict, err := json.UnmarshalStrict(class.ProviderSpec.Raw, spec)
	switch {
	case err != nil:
		return nil, status.WrapError(codes.InvalidArgument, "providerSpec: "+err.Error(), err)
	case len(strict) > 0:
		return nil, status.WrapError(codes.InvalidArgument, "providerSpec: "+strict[0].Error(), strict[0])
	case spec.Size != "small" && spec.Size != "large":
		return nil, status.Error(codes.InvalidArgument, "providerSpec.size: is neither small nor large")
	case spec.cluster() == "" || !spec.has("kubernetes.io/role/"):
		return nil, status.Error(codes.InvalidArgument, "providerSpec.tags: there must be one that begins with kubernetes.io/cluster/ and one with kubernetes.io/role/")
	}
	return spec, nil
}

// parseFor is parse for a request about a machine, which must have a name.
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

// cluster is the name of the cluster that the tags name.
func (s *Spec) cluster() string {
	cluster := ""
	for tag := range s.Tags {
		if name, ok := strings.CutPrefix(tag, clusterPrefix); ok && (cluster == "" || name < cluster) {
			cluster = name
		}
	}
	return cluster
}

// name is the name of the VM of a machine. Two clusters have different ones.
func (s *Spec) name(machine *v1alpha1.Machine) string {
	return s.cluster() + "/" + key(machine)
}
