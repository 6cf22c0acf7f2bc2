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
	// Folder is where the VMs are.
	Folder string `json:"folder"`
	// Size of the VMs. One of another size than that of the class does not fit.
	Size string `json:"size"`
	// Tags of the VMs. One with each of the prefixes kubernetes.io/cluster/ and kubernetes.io/role/ is
	// required.
	Tags map[string]string `json:"tags"`
}

// The prefixes of the tags that say which cluster a VM is for, and as what.
const (
	clusterTag = "kubernetes.io/cluster/"
	roleTag    = "kubernetes.io/role/"
)

// specOf returns the provider specification of a class.
func specOf(class *v1alpha1.MachineClass) (*ProviderSpec, error) {
	if class.Provider != Provider {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("requested for provider %q, supported is %q", class.Provider, Provider))
	}
	spec := &ProviderSpec{}
	decoder := json.NewDecoder(bytes.NewReader(class.ProviderSpec.Raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(spec); err != nil {
		return nil, status.Error(codes.InvalidArgument, "providerSpec: "+err.Error())
	}
	if spec.Folder == "" {
		return nil, status.Error(codes.InvalidArgument, "providerSpec.folder is required")
	}
	if cluster := spec.cluster(); cluster == "" || strings.ContainsAny(cluster, "/_") {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("providerSpec.tags: a tag %sNAME is required, whose name has no / or _", clusterTag))
	}
	if named(spec.Tags, roleTag) == "" {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("providerSpec.tags: a tag %sNAME is required", roleTag))
	}
	return spec, nil
}

// cluster is the name of the cluster that the VMs are for.
func (s *ProviderSpec) cluster() string { return named(s.Tags, clusterTag) }

// named returns what follows the prefix of a tag. Of several, it is the first one's.
func named(tags map[string]string, prefix string) string {
	first := ""
	for tag := range tags {
		if name, ok := strings.CutPrefix(tag, prefix); ok && (first == "" || name < first) {
			first = name
		}
	}
	return first
}
