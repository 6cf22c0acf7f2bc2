package hypervisor

import (
	"encoding/base64"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// SpecError says what is wrong with a VMSpec. Nothing was done.
type SpecError struct {
	// Field is the path of the field in the VMSpec, such as "initial_image.url"; "spec"
	// if the text as a whole cannot be read, or does not fit the configuration.
	Field string
	// Problem is what is wrong with it, for people.
	Problem string
}

// Error implements error.
func (e *SpecError) Error() string { return e.Field + ": " + e.Problem }

// ParseSpec reads a VMSpec as it stands in the environment: protobuf JSON, or the
// binary form in standard base64 with padding. Fields that it does not know, those of
// a newer controller, are dropped.
//
// The error is a *SpecError for the first thing that is missing, undecodable, against
// a rule of the protocol, or not implemented.
func ParseSpec(text string) (*vmpb.VMSpec, error) {
	spec, problem := decodeSpec(strings.TrimSpace(text))
	if problem != nil {
		return nil, problem
	}
	if problem := checkSpec(spec); problem != nil {
		return nil, problem
	}
	return spec, nil
}

func decodeSpec(text string) (*vmpb.VMSpec, *SpecError) {
	spec := &vmpb.VMSpec{}
	switch {
	case text == "":
		return nil, &SpecError{"spec", "is required"}
	case strings.HasPrefix(text, "{"):
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), spec); err != nil {
			return nil, &SpecError{"spec", "cannot be read as JSON: " + err.Error()}
		}
		return spec, nil
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, &SpecError{"spec", "is neither JSON nor base64: " + err.Error()}
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, spec); err != nil {
		return nil, &SpecError{"spec", "cannot be read as a binary message: " + err.Error()}
	}
	return spec, nil
}
