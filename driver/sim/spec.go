package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// joinMode says what a VM's node does.
type joinMode string

const (
	joinReady    joinMode = "ready"
	joinNotReady joinMode = "notReady"
	joinFlap     joinMode = "flap"
	joinNever    joinMode = "never"
)

const defaultFlapInterval = 30 * time.Second

// specJSON is the provider specification as it is written. The package comment
// describes the fields.
type specJSON struct {
	APIVersion   string            `json:"apiVersion"`
	Kind         string            `json:"kind"`
	Latency      string            `json:"latency"`
	JoinDelay    string            `json:"joinDelay"`
	DeleteDelay  string            `json:"deleteDelay"`
	VisibleAfter string            `json:"visibleAfter"`
	Jitter       float64           `json:"jitter"`
	Join         joinMode          `json:"join"`
	FlapInterval string            `json:"flapInterval"`
	Pool         string            `json:"pool"`
	Zone         string            `json:"zone"`
	Capacity     int               `json:"capacity"`
	Tags         map[string]string `json:"tags"`
	NodeLabels   map[string]string `json:"nodeLabels"`
	NodeTaints   []corev1.Taint    `json:"nodeTaints"`
}

// spec is a valid provider specification with its defaults filled in.
type spec struct {
	specJSON
	latency, joinDelay, deleteDelay, visibleAfter, flapInterval time.Duration
	apiGroup                                                    string
}

// parseSpec reads the provider specification of a class. Its errors have the code
// InvalidArgument and name the field.
func parseSpec(class *v1alpha1.MachineClass) (spec, error) {
	var s spec
	if class == nil {
		return s, status.Error(codes.InvalidArgument, "the request has no machine class")
	}
	if raw := bytes.TrimSpace(class.ProviderSpec.Raw); len(raw) > 0 {
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&s.specJSON); err != nil {
			return s, status.WrapError(codes.InvalidArgument, decodeMessage(raw, err), err)
		}
	}
	if s.Pool == "" {
		s.Pool = class.Namespace + "/" + class.Name
	}
	if s.Join == "" {
		s.Join = joinReady
	}
	s.apiGroup = driver.APIGroup(class)
	if err := s.check(); err != nil {
		return s, status.WrapError(codes.InvalidArgument, "providerSpec."+err.Error(), err)
	}
	return s, nil
}

// decodeMessage names the field where the decoder knows it.
func decodeMessage(raw []byte, err error) string {
	if typeErr, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && typeErr.Field != "" {
		return fmt.Sprintf("providerSpec.%s: a JSON %s does not fit", typeErr.Field, typeErr.Value)
	}
	unknown := unknownField.FindStringSubmatch(err.Error())
	var fields map[string]json.RawMessage
	if unknown == nil || json.Unmarshal(raw, &fields) != nil || fields[unknown[1]] == nil {
		return fmt.Sprintf("providerSpec: %v", err) // such as of a field in a taint
	}
	return fmt.Sprintf("providerSpec.%s: is not known (known: %s)", unknown[1], strings.Join(fieldNames(), ", "))
}

// unknownField is how the decoder names a field that it does not know. It has no type for
// that; where the words are others one day, they are passed on as they are.
var unknownField = regexp.MustCompile(`^json: unknown field "(.*)"$`)

// fieldNames are the fields of the provider specification, sorted.
func fieldNames() []string {
	var names []string
	for field := range reflect.TypeFor[specJSON]().Fields() {
		if name := field.Tag.Get("json"); name != "apiVersion" && name != "kind" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// check validates the fields and fills in the durations. Its errors begin with the
// name of the field.
func (s *spec) check() error {
	s.flapInterval = defaultFlapInterval
	for _, f := range []struct {
		name, text string
		into       *time.Duration
	}{
		{"latency", s.Latency, &s.latency},
		{"joinDelay", s.JoinDelay, &s.joinDelay},
		{"deleteDelay", s.DeleteDelay, &s.deleteDelay},
		{"visibleAfter", s.VisibleAfter, &s.visibleAfter},
		{"flapInterval", s.FlapInterval, &s.flapInterval},
	} {
		if err := parseDuration(f.text, f.into); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	switch {
	case s.flapInterval == 0:
		return errors.New("flapInterval: must be greater than 0s")
	case s.Jitter < 0 || s.Jitter > 1:
		return fmt.Errorf("jitter: %v is not between 0 and 1", s.Jitter)
	case s.Capacity < 0:
		return fmt.Errorf("capacity: %d is negative", s.Capacity)
	case s.Zone != "" && !isZone(s.Zone):
		return fmt.Errorf("zone: %q cannot be a zone", s.Zone)
	}
	switch s.Join {
	case joinReady, joinNotReady, joinFlap, joinNever:
		return nil
	default:
		return fmt.Errorf("join: %q is none of ready, notReady, flap, never", s.Join)
	}
}

// parseDuration leaves into as it is if there is no text.
func parseDuration(text string, into *time.Duration) error {
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration", text)
	}
	if d < 0 {
		return fmt.Errorf("%s is negative", text)
	}
	*into = d
	return nil
}
