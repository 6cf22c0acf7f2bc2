// Package spec parses provider specifications of the simulated driver. The package comment of sim describes the
// fields.
package spec

import (
	"bytes"
	"cmp"
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

// Join is the behavior of a VM's node.
type Join string

// The values of Join.
const (
	JoinReady    Join = "ready"
	JoinNotReady Join = "notReady"
	JoinFlap     Join = "flap"
	JoinNever    Join = "never"
)

// Agent is the behavior of the program on a VM's node that updates the node in place.
type Agent string

// The values of Agent.
const (
	AgentNone    Agent = ""
	AgentSucceed Agent = "succeed"
	AgentFail    Agent = "fail"
	AgentSilent  Agent = "silent"
	AgentDie     Agent = "die"
)

// Valid reports whether a is one of the agents.
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

// Spec is a valid provider specification with defaults set.
type Spec struct {
	fields
	// Durations of the fields with the same names.
	Latency, JoinDelay, DeleteDelay, VisibleAfter, Lifetime, FlapInterval, UpdateTime time.Duration
	// APIGroup is the API group of the object that the class serves; see driver.APIGroup.
	APIGroup string
	// Script contains the behavior that the annotations of the class define.
	Script Script
}

// Parse parses the provider specification of a class. Its errors have the code InvalidArgument and name the field.
func Parse(class *v1alpha1.MachineClass) (Spec, error) {
	return parse(class, true)
}

// ParseToFind is like Parse, for calls that only look for VMs or delete them, so that Machines can be deleted even if no VM can
// be created from their class. It ignores unknown fields, for example of a later version. If another field or the faults are
// invalid, the result has only the fields that identify VMs, their zone, and the zones that are out of service.
func ParseToFind(class *v1alpha1.MachineClass) (Spec, error) {
	s, err := parse(class, false)
	if err == nil || class == nil {
		return s, err
	}
	var known struct {
		Pool string            `json:"pool"`
		Tags map[string]string `json:"tags"`
		Zone any               `json:"zone"`
	}
	if err := decode(class, false, &known); err != nil {
		return s, err
	}
	s = Spec{fields: fields{Pool: poolOf(class, known.Pool), Tags: known.Tags}, APIGroup: driver.APIGroup(class)}
	s.Zone, _ = known.Zone.(string)  // for outages
	s.Script, _ = parseScript(class) // outages apply even if the faults are invalid
	return s, nil
}

// ParseToList is like ParseToFind, for calls that list the VMs of a class. If the class has no tags, unknown fields are errors: one
// may be a misspelling of "tags". The list would then contain the VMs of other clusters, which would be deleted as orphans.
func ParseToList(class *v1alpha1.MachineClass) (Spec, error) {
	s, err := ParseToFind(class)
	if err == nil && len(s.Tags) == 0 {
		return Parse(class)
	}
	return s, err
}

// parse parses the provider specification of a class. If strict is false, it ignores unknown fields.
func parse(class *v1alpha1.MachineClass, strict bool) (Spec, error) {
	var s Spec
	if class == nil {
		return s, status.Error(codes.InvalidArgument, "the request has no machine class")
	}
	if err := decode(class, strict, &s.fields); err != nil {
		return s, err
	}
	s.Pool = poolOf(class, s.Pool)
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

// decode decodes the provider specification of a class. If strict is false, it ignores unknown fields.
func decode(class *v1alpha1.MachineClass, strict bool, into any) error {
	raw := bytes.TrimSpace(class.ProviderSpec.Raw)
	if len(raw) == 0 {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if strict {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(into); err != nil {
		return status.WrapError(codes.InvalidArgument, decodeMessage(raw, err), err)
	}
	return nil
}

// poolOf returns the pool that a provider specification names, or the default.
func poolOf(class *v1alpha1.MachineClass, pool string) string {
	return cmp.Or(pool, class.Namespace+"/"+class.Name)
}

// decodeMessage returns an error message that names the field if the decoder reports one.
func decodeMessage(raw []byte, err error) string {
	if typeErr, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := strings.TrimSuffix("providerSpec."+typeErr.Field, ".") // no field if the error concerns the whole specification
		return fmt.Sprintf("%s: invalid JSON %s", field, typeErr.Value)
	}
	unknown := unknownField.FindStringSubmatch(err.Error())
	var fields map[string]json.RawMessage
	if unknown == nil || json.Unmarshal(raw, &fields) != nil || fields[unknown[1]] == nil {
		return fmt.Sprintf("providerSpec: %v", err) // such as an unknown field of a taint
	}
	return fmt.Sprintf("unknown field providerSpec.%s (known fields: %s)", unknown[1], strings.Join(fieldNames(), ", "))
}

// unknownField matches the decoder's error for an unknown field, which has no separate type. An error that does not
// match is shown unchanged.
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

// check validates the fields and sets the durations. Its errors start with the name of the field.
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
		return errors.New("capacity: must not be negative")
	case s.ZoneCapacity < 0:
		return errors.New("zoneCapacity: must not be negative")
	}
	return s.checkChoices()
}

// checkChoices validates the fields that have a fixed set of values.
func (s *Spec) checkChoices() error {
	switch {
	case !s.Distribution.Valid():
		return fmt.Errorf("distribution: %q is not one of exponential, longTail", s.Distribution)
	case s.Zone != "" && !IsZone(s.Zone):
		return fmt.Errorf("zone: %q is not a valid label value", s.Zone)
	case !s.Agent.Valid():
		return fmt.Errorf("agent: %q is not one of succeed, fail, silent, die", s.Agent)
	}
	switch s.Join {
	case JoinReady, JoinNotReady, JoinFlap, JoinNever:
		return nil
	default:
		return fmt.Errorf("join: %q is not one of ready, notReady, flap, never", s.Join)
	}
}

// parseDuration parses text into a duration. If text is empty, the duration stays unchanged.
func parseDuration(text string, into *time.Duration) error {
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration", text)
	}
	if d < 0 {
		return errors.New("must not be negative")
	}
	*into = d
	return nil
}

// IsZone reports whether name can be the name of a zone. Nodes get it as a label.
func IsZone(name string) bool { return name != "" && len(validation.IsValidLabelValue(name)) == 0 }

// CheckName returns an error with the code InvalidArgument if name is not a valid name of a machine.
func CheckName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return status.Error(codes.InvalidArgument, fmt.Sprintf("invalid machine name %q: %s", name, strings.Join(problems, "; ")))
	}
	return nil
}

// CheckNodeName returns an error with the code InvalidArgument if name is too long for the label
// kubernetes.io/hostname of a node.
func CheckNodeName(name string) error {
	if len(name) > validation.LabelValueMaxLength {
		return status.Error(codes.InvalidArgument, fmt.Sprintf(
			"machine name %q has %d characters, but names of nodes have at most %d; use a shorter name", name, len(name), validation.LabelValueMaxLength))
	}
	return nil
}
