package folder

import (
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
	// Tags of the VMs. Those with the prefixes kubernetes.io/cluster/ and kubernetes.io/role/ are
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
	if err := json.Unmarshal(class.ProviderSpec.Raw, spec); err != nil {
		return nil, status.Error(codes.InvalidArgument, "providerSpec: "+err.Error())
	}
	if spec.Folder == "" {
		return nil, status.Error(codes.InvalidArgument, "providerSpec.folder is required")
	}
	for _, prefix := range []string{clusterTag, roleTag} {
		if !hasPrefix(spec.Tags, prefix) {
			return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("providerSpec.tags: a tag %s… is required", prefix))
		}
	}
	return spec, nil
}

func hasPrefix(tags map[string]string, prefix string) bool {
	for tag := range tags {
		if strings.HasPrefix(tag, prefix) {
			return true
		}
	}
	return false
}
