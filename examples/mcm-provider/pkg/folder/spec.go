package folder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
)

// Provider is the provider of the classes that this driver serves.
const Provider = "folder"

// ProviderSpec is the provider specification of a class.
type ProviderSpec struct {
	// Directory is the directory of the VMs.
	Directory string `json:"folder"`
	// Size of the VMs. A VM of another size does not fit the class.
	Size string `json:"size"`
	// Tags of the VMs. One tag with the prefix kubernetes.io/cluster/ and one with kubernetes.io/role/ are
	// required.
	Tags map[string]string `json:"tags"`
}

// Prefixes of the tags that name the cluster and the role of a VM.
const (
	clusterTag = "kubernetes.io/cluster/"
	roleTag    = "kubernetes.io/role/"
)

// specOf returns the provider specification of a class. It validates only the fields that are needed to find and delete VMs:
// the directory and the tags.
func specOf(class *v1alpha1.MachineClass) (*ProviderSpec, error) {
	if class.Provider != Provider {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("the class has provider %q, but this driver supports only %q", class.Provider, Provider))
	}
	spec := &ProviderSpec{}
	if err := json.Unmarshal(class.ProviderSpec.Raw, spec); err != nil {
		return nil, status.Error(codes.InvalidArgument, "providerSpec: "+err.Error())
	}
	if spec.Directory == "" {
		return nil, status.Error(codes.InvalidArgument, "providerSpec.folder is required")
	}
	if cluster := spec.cluster(); cluster == "" || strings.ContainsAny(cluster, "/_") {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("providerSpec.tags: a tag %sNAME is required; NAME must not contain / or _", clusterTag))
	}
	if named(spec.Tags, roleTag) == "" {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("providerSpec.tags: a tag %sNAME is required", roleTag))
	}
	return spec, nil
}

// checkFields returns an error if the provider specification of a class has unknown fields. Only creations need it.
func checkFields(class *v1alpha1.MachineClass) error {
	decoder := json.NewDecoder(bytes.NewReader(class.ProviderSpec.Raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&ProviderSpec{}); err != nil {
		return status.Error(codes.InvalidArgument, "providerSpec: "+err.Error())
	}
	return nil
}

// cluster returns the name of the VMs' cluster.
func (s *ProviderSpec) cluster() string { return named(s.Tags, clusterTag) }

// named returns the part after the prefix of the first tag with that prefix, in order of names.
func named(tags map[string]string, prefix string) string {
	first := ""
	for tag := range tags {
		if name, ok := strings.CutPrefix(tag, prefix); ok && (first == "" || name < first) {
			first = name
		}
	}
	return first
}
