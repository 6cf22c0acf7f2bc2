// Package migrate converts legacy classes, such as AWSMachineClass, to classes of the simulated driver.
package migrate

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Provider is the provider of the resulting classes.
const Provider = "sim"

// providerSpec is the provider specification that results from a legacy class.
type providerSpec struct {
	Tags   map[string]string `json:"tags,omitempty"`
	Legacy older             `json:"legacy"`
}

// older is the legacy class without its Secrets.
type older struct {
	Kind string                     `json:"kind"`
	Spec map[string]json.RawMessage `json:"spec"`
}

// Fill fills the MachineClass of a request. The provider specification contains the tags of the older class, and
// all its fields below "legacy".
func Fill(req *driver.GenerateMachineClassForMigrationRequest) error {
	if req.MachineClass == nil || req.ClassSpec == nil {
		return status.Error(codes.Internal, "the request has no MachineClass, or has no kind")
	}
	kind := req.ClassSpec.Kind
	if !slices.Contains(legacy.Kinds(), kind) {
		return status.Error(codes.Unimplemented, fmt.Sprintf("objects of kind %q cannot be migrated", kind))
	}
	made := providerSpec{Legacy: older{Kind: kind}}
	secretRef, credentials := req.MachineClass.SecretRef, req.MachineClass.CredentialsSecretRef
	if err := take(req.ProviderSpecificMachineClass, &made.Legacy.Spec); err != nil {
		return err
	}
	for field, into := range map[string]**corev1.SecretReference{"secretRef": &secretRef, "credentialsSecretRef": &credentials} {
		*into = nil
		if err := decode(made.Legacy.Spec, field, into); err != nil {
			return err
		}
		delete(made.Legacy.Spec, field)
	}
	if err := decode(made.Legacy.Spec, tagsField(kind), &made.Tags); err != nil {
		return err
	}
	raw, err := json.Marshal(made)
	if err != nil {
		return status.WrapError(codes.Internal, err.Error(), err)
	}
	class := req.MachineClass
	class.Provider, class.ProviderSpec.Raw, class.ProviderSpec.Object = Provider, raw, nil
	class.SecretRef, class.CredentialsSecretRef = secretRef, credentials
	return nil
}

// tagsField returns the name of the field that contains a map of tags. Packet's tags are not a map.
func tagsField(kind string) string {
	switch kind {
	case legacy.GCP:
		return "labels"
	case legacy.Packet:
		return ""
	default:
		return "tags"
	}
}

// take decodes the spec of an object.
func take(object any, spec *map[string]json.RawMessage) error {
	raw, err := json.Marshal(object)
	if err != nil {
		return status.WrapError(codes.Internal, fmt.Sprintf("cannot encode the object as JSON: %v", err), err)
	}
	var parsed struct {
		Spec map[string]json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(raw, &parsed); err != nil || parsed.Spec == nil {
		return status.Error(codes.Internal, "the object has no spec")
	}
	*spec = parsed.Spec
	return nil
}

// decode decodes a field, if it is set.
func decode(spec map[string]json.RawMessage, field string, into any) error {
	if spec[field] == nil {
		return nil
	}
	if err := json.Unmarshal(spec[field], into); err != nil {
		return status.WrapError(codes.Internal, fmt.Sprintf("spec.%s: %v", field, err), err)
	}
	return nil
}
