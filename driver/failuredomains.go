package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// FailureDomains is implemented by drivers whose provider has failure domains: places like zones,
// racks or hosts, each of which fails as a whole. With a driver that lacks it, users
// declare failure domains, and say for each of them how a VM gets there.
type FailureDomains interface {
	// ListFailureDomains returns the failure domains in which VMs can be made.
	//
	//   - It MUST be idempotent and change nothing. It is asked every few minutes.
	//   - Of the provider specification it SHOULD look only at what the answer depends
	//     on: the specification may say less than one that VMs are made from.
	//   - Names MUST be unique in the list, and have 1 to 256 bytes. The order does not
	//     matter.
	//   - A partial list MUST NOT be returned as OK. One that is empty means that the
	//     provider has no failure domains at present.
	//
	// Codes: InvalidArgument (provider specification), PermissionDenied,
	// FailedPrecondition, Unimplemented.
	ListFailureDomains(ctx context.Context, req *ListFailureDomainsRequest) (*ListFailureDomainsResponse, error)

	// PlaceMachine returns the provider specification of a class, changed so that its VMs
	// are made in a failure domain.
	//
	//   - It MUST make no request and answer at once: the answer depends on nothing but
	//     the request, so the same request always has the same answer. Whether the
	//     failure domain exists is found out by CreateMachine.
	//   - A failure domain that the provider specification names already is replaced.
	//   - Nothing else of the provider specification may change its meaning, and what is
	//     wrong with it is left for CreateMachine to find.
	//
	// Codes: NotFound (no failure domain can have that name), InvalidArgument (the
	// provider specification cannot be changed), Unimplemented.
	PlaceMachine(req *PlaceMachineRequest) (*PlaceMachineResponse, error)
}

// ListFailureDomainsRequest asks for failure domains.
type ListFailureDomainsRequest struct {
	// MachineClass whose provider specification says where to look. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials. Never nil.
	Secret *corev1.Secret
}

// ListFailureDomainsResponse holds failure domains.
type ListFailureDomainsResponse struct {
	// FailureDomains in which VMs can be made. Nil and empty mean the same: there are none.
	FailureDomains []FailureDomain
}

// FailureDomain is a place that fails as a whole.
type FailureDomain struct {
	// Name by which PlaceMachine knows it.
	Name string
	// Attributes are for users, who see them. Optional.
	Attributes map[string]string
}

// PlaceMachineRequest asks how VMs of a class get into a failure domain.
type PlaceMachineRequest struct {
	// MachineClass whose VMs they are. Never nil.
	MachineClass *v1alpha1.MachineClass
	// FailureDomain is the name of the place. Never empty.
	FailureDomain string
}

// PlaceMachineResponse says how VMs of a class get into a failure domain.
type PlaceMachineResponse struct {
	// ProviderSpec takes the place of the class's.
	ProviderSpec runtime.RawExtension
}

// WithField returns a provider specification with the text in one of its fields: what
// PlaceMachine does where a field names the failure domain. All others keep
// their values to the last digit. If the specification is no JSON object, the error is InvalidArgument.
func WithField(spec runtime.RawExtension, name, text string) (runtime.RawExtension, error) {
	fields := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(spec.Raw)) > 0 {
		if err := json.Unmarshal(spec.Raw, &fields); err != nil || fields == nil {
			return runtime.RawExtension{}, status.WrapError(codes.InvalidArgument, "providerSpec: is not a JSON object", err)
		}
	}
	value, err := json.Marshal(text)
	if err != nil {
		return runtime.RawExtension{}, fmt.Errorf("writing %s: %w", name, err)
	}
	fields[name] = value
	raw, err := json.Marshal(fields)
	if err != nil {
		return runtime.RawExtension{}, fmt.Errorf("writing the provider specification: %w", err)
	}
	return runtime.RawExtension{Raw: raw}, nil
}
