// Package spec reads provider specifications of the simulated driver. The package comment
// of sim describes the fields.
package spec

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
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/dice"
	"github.com/millwright-dev/millwright/driver/status"
)

// Join is what a VM's node does.
type Join string

// The values of Join.
const (
	JoinReady    Join = "ready"
	JoinNotReady Join = "notReady"
	JoinFlap     Join = "flap"
	JoinNever    Join = "never"
)

// Agent is what the program on a VM's node does that updates the node in place.
type Agent string

// The values of Agent.
const (
	AgentNone    Agent = ""
	AgentSucceed Agent = "succeed"
	AgentFail    Agent = "fail"
	AgentSilent  Agent = "silent"
	AgentDie     Agent = "die"
)

// Valid reports whether there is such an agent.
func (a Agent) Valid() bool {
	return slices.Contains([]Agent{AgentNone, AgentSucceed, AgentFail, AgentSilent, AgentDie}, a)
}

const (
	defaultFlapInterval = 30 * time.Second
	defaultUpdateTime   = 5 * time.Second
)

// fields are the fields of a provider specification that need no conversion.
type fields struct {
	APIVersion   string            `json:"apiVersion"`
	Kind         string            `json:"kind"`
	Latency      string            `json:"latency"`
	JoinDelay    string            `json:"joinDelay"`
	DeleteDelay  string            `json:"deleteDelay"`
	VisibleAfter string            `json:"visibleAfter"`
	Lifetime     string            `json:"lifetime"`
	Jitter       float64           `json:"jitter"`
	Distribution dice.Distribution `json:"distribution"`
	Join         Join              `json:"join"`
	FlapInterval string            `json:"flapInterval"`
	Agent        Agent             `json:"agent"`
	UpdateTime   string            `json:"updateTime"`
	Pool         string            `json:"pool"`
	Zone         string            `json:"zone"`
	Capacity     int               `json:"capacity"`
	ZoneCapacity int               `json:"zoneCapacity"`
	Tags         map[string]string `json:"tags"`
	NodeLabels   map[string]string `json:"nodeLabels"`
	NodeTaints   []corev1.Taint    `json:"nodeTaints"`
	Legacy       json.RawMessage   `json:"legacy"`
}

// Spec is a valid provider specification with its defaults filled in.
type Spec struct {
	fields
	// The durations of the fields of the same names.
	Latency, JoinDelay, DeleteDelay, VisibleAfter, Lifetime, FlapInterval, UpdateTime time.Duration
	// APIGroup is that of the object that the class serves, see driver.APIGroup.
	APIGroup string
	// Script is what the class's annotations say.
	Script Script
}

// Parse reads the provider specification of a class. Its errors have the code
// InvalidArgument and name the field.
func Parse(class *v1alpha1.MachineClass) (Spec, error) {
	var s Spec
	if class == nil {
		return s, status.Error(codes.InvalidArgument, "the request has no machine class")
	}
	if raw := bytes.TrimSpace(class.ProviderSpec.Raw); len(raw) > 0 {
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&s.fields); err != nil {
			return s, status.WrapError(codes.InvalidArgument, decodeMessage(raw, err), err)
		}
	}
	if s.Pool == "" {
		s.Pool = class.Namespace + "/" + class.Name
	}
	if s.Join == "" {
		s.Join = JoinReady
	}
	s.APIGroup = driver.APIGroup(class)
	if err := s.check(); err != nil {
		return s, status.WrapError(codes.InvalidArgument, "providerSpec."+err.Error(), err)
	}
	var err error
	if s.Script, err = parseScript(class); err != nil {
		return s, status.WrapError(codes.InvalidArgument, err.Error(), err)
	}
	return s, nil
}

// decodeMessage names the field where the decoder knows it.
func decodeMessage(raw []byte, err error) string {
	if typeErr, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := strings.TrimSuffix("providerSpec."+typeErr.Field, ".") // no field: it is the whole
		return fmt.Sprintf("%s: a JSON %s does not fit", field, typeErr.Value)
	}
	unknown := unknownField.FindStringSubmatch(err.Error())
	var fields map[string]json.RawMessage
	if unknown == nil || json.Unmarshal(raw, &fields) != nil || fields[unknown[1]] == nil {
		return fmt.Sprintf("providerSpec: %v", err) // such as an unknown field of a taint
	}
	return fmt.Sprintf("providerSpec.%s: is not known (known: %s)", unknown[1], strings.Join(fieldNames(), ", "))
}

// unknownField matches the decoder's error for an unknown field, which has no type of its
// own. An error that does not match is shown as it is.
var unknownField = regexp.MustCompile(`^json: unknown field "(.*)"$`)

// fieldNames returns the fields of the provider specification, sorted.
func fieldNames() []string {
	var names []string
	for field := range reflect.TypeFor[fields]().Fields() {
		if name := field.Tag.Get("json"); name != "apiVersion" && name != "kind" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// check validates the fields and fills in the durations. Its errors begin with the
// name of the field.
func (s *Spec) check() error {
	s.FlapInterval, s.UpdateTime = defaultFlapInterval, defaultUpdateTime
	for _, f := range []struct {
		name, text string
		into       *time.Duration
	}{
		{"latency", s.fields.Latency, &s.Latency},
		{"joinDelay", s.fields.JoinDelay, &s.JoinDelay},
		{"deleteDelay", s.fields.DeleteDelay, &s.DeleteDelay},
		{"visibleAfter", s.fields.VisibleAfter, &s.VisibleAfter},
		{"lifetime", s.fields.Lifetime, &s.Lifetime},
		{"flapInterval", s.fields.FlapInterval, &s.FlapInterval},
		{"updateTime", s.fields.UpdateTime, &s.UpdateTime},
	} {
		if err := parseDuration(f.text, f.into); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	switch {
	case s.FlapInterval == 0:
		return errors.New("flapInterval: must be greater than 0s")
	case s.Jitter < 0 || s.Jitter > 1:
		return fmt.Errorf("jitter: %v is not between 0 and 1", s.Jitter)
	case s.Capacity < 0:
		return fmt.Errorf("capacity: %d is negative", s.Capacity)
	case s.ZoneCapacity < 0:
		return fmt.Errorf("zoneCapacity: %d is negative", s.ZoneCapacity)
	}
	return s.checkChoices()
}

// checkChoices validates the fields with a few values.
func (s *Spec) checkChoices() error {
	switch {
	case !s.Distribution.Valid():
		return fmt.Errorf("distribution: %q is none of exponential, longTail", s.Distribution)
	case s.Zone != "" && !IsZone(s.Zone):
		return fmt.Errorf("zone: %q cannot be a zone", s.Zone)
	case !s.Agent.Valid():
		return fmt.Errorf("agent: %q is none of succeed, fail, silent, die", s.Agent)
	}
	switch s.Join {
	case JoinReady, JoinNotReady, JoinFlap, JoinNever:
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

// IsZone reports whether a zone can have the name: nodes get it as a label.
func IsZone(name string) bool { return name != "" && len(validation.IsValidLabelValue(name)) == 0 }

// CheckName returns an error with the code InvalidArgument unless a machine can have the name.
func CheckName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return status.Error(codes.InvalidArgument, fmt.Sprintf("machine name %q: %s", name, strings.Join(problems, "; ")))
	}
	return nil
}
