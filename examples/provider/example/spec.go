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

// parseTags decodes and validates the tags in the providerSpec of a class. To find and delete VMs, no other fields are needed,
// so these may be unknown or invalid.
func parseTags(class *v1alpha1.MachineClass) (*Spec, error) {
	var fields struct {
		Tags map[string]string `json:"tags"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(class.ProviderSpec.Raw, &fields); err != nil {
		return nil, status.WrapError(codes.InvalidArgument, "providerSpec: "+err.Error(), err)
	}
	spec := &Spec{Tags: fields.Tags}
	if spec.cluster() == "" || !spec.has("kubernetes.io/role/") {
		return nil, status.Error(codes.InvalidArgument, "providerSpec.tags: must have a key that starts with kubernetes.io/cluster/ and one that starts with kubernetes.io/role/")
	}
	return spec, nil
}

// parse decodes and validates the whole providerSpec of a class.
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
	}
	_, err = parseTags(class)
	return spec, err
}

func checkName(machine *v1alpha1.Machine) error {
	if machine.Name == "" {
		return status.Error(codes.InvalidArgument, "the machine has no name")
	}
	return nil
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
