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

// FailureDomains is implemented by drivers whose provider has failure domains: zones, racks or hosts that each fail
// as a unit. With other drivers, users declare failure domains and the provider specification of each.
type FailureDomains interface {
	// ListFailureDomains returns the failure domains in which VMs can be created.
	//
	//   - It MUST be idempotent and change nothing. It is called every few minutes.
	//   - It SHOULD validate only those fields of the provider specification on which the
	//     result depends: the specification may lack fields that a VM needs.
	//   - Names MUST be unique and have 1 to 256 bytes. The order does not matter.
	//   - A partial list MUST NOT be returned as OK. An empty list means that the
	//     provider has no failure domains at present.
	//
	// Codes: InvalidArgument (provider specification), PermissionDenied,
	// FailedPrecondition, Unimplemented.
	ListFailureDomains(ctx context.Context, req *ListFailureDomainsRequest) (*ListFailureDomainsResponse, error)

	// PlaceMachine returns the provider specification of a class, changed so that its VMs are created in a failure
	// domain.
	//
	//   - It MUST be a pure function of the request: it sends no requests and does not block. CreateMachine checks
	//     whether the failure domain exists.
	//   - It replaces a failure domain that the provider specification already names.
	//   - It does not change the meaning of anything else, and leaves the validation of the provider specification
	//     to CreateMachine.
	//
	// Codes: NotFound (no failure domain can have that name), InvalidArgument (the provider specification cannot be
	// changed), Unimplemented.
	PlaceMachine(ctx context.Context, req *PlaceMachineRequest) (*PlaceMachineResponse, error)
}

// ListFailureDomainsRequest asks for failure domains.
type ListFailureDomainsRequest struct {
	// MachineClass with the provider specification. Never nil.
	MachineClass *v1alpha1.MachineClass
	// Secret with the provider's credentials. Never nil.
	Secret *corev1.Secret
}

// ListFailureDomainsResponse lists failure domains.
type ListFailureDomainsResponse struct {
	// FailureDomains in which VMs can be created. Nil and empty both mean that there are none.
	FailureDomains []FailureDomain
}

// FailureDomain is a part of the provider that fails as a unit.
type FailureDomain struct {
	// Name to pass to PlaceMachine.
	Name string
	// Attributes are shown to users. Optional.
	Attributes map[string]string
}

// PlaceMachineRequest asks for the provider specification for a failure domain.
type PlaceMachineRequest struct {
	// MachineClass with the provider specification to change. Never nil.
	MachineClass *v1alpha1.MachineClass
	// FailureDomain is the name of the failure domain. Never empty.
	FailureDomain string
}

// PlaceMachineResponse contains the provider specification for a failure domain.
type PlaceMachineResponse struct {
	// ProviderSpec replaces that of the class.
	ProviderSpec runtime.RawExtension
}

// WithField returns a provider specification with one field set to a string. It implements PlaceMachine for drivers
// with a field that names the failure domain. Other fields stay unchanged, and numbers keep their precision. The
// error is InvalidArgument if the specification is not a JSON object.
func WithField(spec runtime.RawExtension, name, text string) (runtime.RawExtension, error) {
	fields := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(spec.Raw)) > 0 {
		if err := json.Unmarshal(spec.Raw, &fields); err != nil || fields == nil {
			return runtime.RawExtension{}, status.WrapError(codes.InvalidArgument, "providerSpec is not a JSON object", err)
		}
	}
	value, err := json.Marshal(text)
	if err != nil {
		return runtime.RawExtension{}, fmt.Errorf("cannot encode field %s: %w", name, err)
	}
	fields[name] = value
	raw, err := json.Marshal(fields)
	if err != nil {
		return runtime.RawExtension{}, fmt.Errorf("cannot encode the provider specification: %w", err)
	}
	return runtime.RawExtension{Raw: raw}, nil
}
