// Package liveupdate decides how instances follow their class without a replacement.
//
// It is pure: what is to be done for a Machine, of either API, follows from its annotations and its class. The annotations
// work with MCM's CRDs and roles, are part of a restore, and can be removed: then the driver is asked again. What is to be
// done for the Machines of a deployment follows from that: see Pool.
package liveupdate

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Strategy is what becomes of VMs that exist when what they were made from changes.
type Strategy string

// The strategies.
const (
	// Keep leaves them as they are, as in MCM. It is the default, and not written.
	Keep Strategy = ""
	// DryRun asks the driver what it could change.
	DryRun Strategy = "DryRun"
	// Update changes them as far as the driver can.
	Update Strategy = "Update"
)

// Parse returns the strategy of the annotation of an object, and what is wrong with it.
func Parse(annotations map[string]string) (Strategy, string) {
	switch text := annotations[v1alpha1.AnnotationKeyUpdateStrategy]; Strategy(text) {
	case Keep, DryRun, Update:
		return Strategy(text), ""
	default:
		return Keep, fmt.Sprintf("%.64q is no update strategy: %s is %q or %q", text, v1alpha1.AnnotationKeyUpdateStrategy, Update, DryRun)
	}
}

// Of returns the strategy of a Machine, and what is wrong with the annotation that counts: that of the Machine, or
// else that of its class.
func Of(machine *v1alpha1.Machine, class *v1alpha1.MachineClass) (Strategy, string) {
	if _, own := machine.Annotations[v1alpha1.AnnotationKeyUpdateStrategy]; own || class == nil {
		return Parse(machine.Annotations)
	}
	return Parse(class.Annotations)
}

// Made is what a VM was made from, or updated to.
type Made struct {
	// Digest is that of what the driver reads of the class.
	Digest string `json:"digest"`
	// Spec is the provider specification; nil if it is too long to be kept.
	Spec json.RawMessage `json:"providerSpec,omitempty"`
}

// Plan is what the driver says that an update would change, and how far the update is.
type Plan struct {
	// Digest as in Made, of the class that was compared with the VM.
	Digest string `json:"digest"`
	// Class is the name of that class if it is another one than that of the Machine: see Asked.
	Class string `json:"class,omitempty"`
	// Updates, AtNextStart and Replacements as in driver.UpdateMachineResponse.
	Updates      []string `json:"updates,omitempty"`
	AtNextStart  []string `json:"atNextStart,omitempty"`
	Replacements []string `json:"replacements,omitempty"`
	// Begun says that the VM may have been changed, for this plan or one before it, and so is not what Made says.
	Begun bool `json:"begun,omitempty"`
	// Done says that the updates were made, or that there are none.
	Done bool `json:"done,omitempty"`
}

// longestSpec limits the bytes of a provider specification that is kept with each Machine.
const longestSpec = 8 << 10

// MadeFrom returns what a VM is once it is as a class says.
func MadeFrom(class *v1alpha1.MachineClass) Made {
	made := Made{Digest: Digest(class)}
	compact := &bytes.Buffer{}
	if json.Compact(compact, class.ProviderSpec.Raw) == nil && compact.Len() <= longestSpec {
		made.Spec = compact.Bytes()
	}
	return made
}

// Digest is equal for classes from which a driver makes the same VM.
func Digest(class *v1alpha1.MachineClass) string {
	var spec any
	if json.Unmarshal(class.ProviderSpec.Raw, &spec) != nil {
		spec = string(class.ProviderSpec.Raw)
	}
	text, _ := json.Marshal([]any{class.Provider, spec}) // was read from JSON, or is a text
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// State is what a Machine says about the update of its VM.
type State struct {
	// Made is nil if it is not known.
	Made *Made
	// Plan is nil if there is none.
	Plan *Plan
}

// Read reads the annotations of a Machine. What cannot be read is not there.
func Read(annotations map[string]string) State {
	return State{
		Made: decode[Made](annotations[v1alpha1.AnnotationKeyMadeFrom]),
		Plan: decode[Plan](annotations[v1alpha1.AnnotationKeyUpdatePlan]),
	}
}

func decode[T any](text string) *T {
	value := new(T)
	if text == "" || json.Unmarshal([]byte(text), value) != nil {
		return nil
	}
	return value
}

// Write writes the annotations of a Machine, which must not be shared.
func (s State) Write(machine metav1.Object) {
	annotations := machine.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	put(annotations, v1alpha1.AnnotationKeyMadeFrom, s.Made == nil, s.Made)
	put(annotations, v1alpha1.AnnotationKeyUpdatePlan, s.Plan == nil, s.Plan)
	machine.SetAnnotations(annotations)
}

func put(annotations map[string]string, key string, absent bool, value any) {
	if absent {
		delete(annotations, key)
		return
	}
	text, _ := json.Marshal(value) // plain fields, and JSON that was read
	annotations[key] = string(text)
}

// Spec is the provider specification that the VM was made from; its Raw is nil if that is not known.
func (s State) Spec() runtime.RawExtension {
	if s.Made == nil || s.Plan != nil && s.Plan.Begun {
		return runtime.RawExtension{}
	}
	return runtime.RawExtension{Raw: s.Made.Spec}
}

// Step is what is to be done next for the VM of a Machine.
type Step int

// The steps.
const (
	// Nothing is to be done.
	Nothing Step = iota
	// Note stores the state that Next returns.
	Note
	// Ask asks the driver what an update would change.
	Ask
	// Change lets the driver make the update.
	Change
)

// Next returns the next step towards a class, and the state to store before it. The VM is known to be as the class
// says only if that was noted, and no update was begun since: one that is cut short, and then not wanted any more,
// is undone by the driver.
func (s State) Next(class *v1alpha1.MachineClass, strategy Strategy) (Step, State) {
	digest := Digest(class)
	begun := s.Plan != nil && s.Plan.Begun
	switch {
	case strategy == Keep:
		return Nothing, s
	case s.Made != nil && s.Made.Digest == digest && !begun && (s.Plan == nil || s.Plan.Digest != digest):
		if s.Plan == nil {
			return Nothing, s
		}
		return Note, State{Made: s.Made}
	case s.Plan == nil || s.Plan.Digest != digest:
		return Ask, s
	case strategy == DryRun || s.Plan.Done:
		return s.settled(class, strategy)
	case !s.Plan.Begun:
		next, plan := s, *s.Plan
		plan.Begun = true
		next.Plan = &plan
		return Note, next
	}
	return Change, s
}

// settled is the end of an update, and of a dry run.
func (s State) settled(class *v1alpha1.MachineClass, strategy Strategy) (Step, State) {
	if strategy == Update && len(s.Plan.Replacements) == 0 {
		made := MadeFrom(class)
		return Note, State{Made: &made}
	}
	return Nothing, s
}

// Planned is the state after the driver has said what an update to a class would change.
func (s State) Planned(class *v1alpha1.MachineClass, strategy Strategy, updates, atNextStart, replacements []string) State {
	plan := &Plan{
		Digest: Digest(class), Updates: updates, AtNextStart: atNextStart, Replacements: replacements,
		Begun: s.Plan != nil && s.Plan.Begun, Done: len(updates) == 0,
	}
	if strategy != Update {
		return State{Made: s.Made, Plan: plan}
	}
	if len(updates)+len(replacements) == 0 {
		made := MadeFrom(class)
		return State{Made: &made}
	}
	plan.Begun = plan.Begun || !plan.Done
	return State{Made: s.Made, Plan: plan}
}

// Updated is the state after the driver has made the update to a class. Differences that need a new VM stay in
// the plan.
func (s State) Updated(class *v1alpha1.MachineClass, updates, atNextStart, replacements []string) State {
	if len(replacements) == 0 {
		made := MadeFrom(class)
		return State{Made: &made}
	}
	return State{Made: s.Made, Plan: &Plan{
		Digest: Digest(class), Updates: updates, AtNextStart: atNextStart, Replacements: replacements, Begun: true, Done: true,
	}}
}

// Effect is what an update to a class does to a Machine.
type Effect string

// The effects. Undecided is that of a Machine whose driver has not answered.
const (
	Undecided Effect = ""
	None      Effect = "nothing"
	Updates   Effect = "updates"
	Replaces  Effect = "replaces"
)

// Effect says what an update to a class would do.
func (s State) Effect(class *v1alpha1.MachineClass) Effect {
	digest := Digest(class)
	switch p := s.Plan; {
	case p == nil && s.Made != nil && s.Made.Digest == digest:
		return None
	case p == nil || p.Digest != digest:
		return Undecided
	}
	return s.Plan.effect()
}

// Says describes what the driver has said, such as "replaces (zone), updates (tags)".
func (p *Plan) Says() string {
	list := func(word string, differences []string) string { return word + strings.Join(differences, ", ") }
	var parts []string
	if len(p.Replacements) > 0 {
		parts = append(parts, list("replaces (", p.Replacements)+")")
	}
	if len(p.Updates) > 0 {
		parts = append(parts, list("updates (", p.Updates)+")")
	}
	if len(p.AtNextStart) > 0 && len(p.Replacements) == 0 {
		parts = append(parts, list("at its next start: ", p.AtNextStart))
	}
	return cmp.Or(strings.Join(parts, ", "), string(None))
}

// effect is what the driver has said.
func (p *Plan) effect() Effect {
	switch {
	case len(p.Replacements) > 0:
		return Replaces
	case !p.Done:
		return Updates
	}
	return None
}
