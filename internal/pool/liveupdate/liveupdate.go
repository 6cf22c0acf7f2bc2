// Package liveupdate decides how instances are updated to match their class without being replaced.
//
// It is pure: the next step for a Machine of either API follows from its annotations and its class. The
// annotations work with MCM's CRDs and roles, and backups include them. If they are removed, the driver is
// queried again. Pool derives the steps for the Machines of a deployment.
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

// Strategy is what happens to existing VMs when their class changes.
type Strategy string

// The strategies.
const (
	// Keep leaves VMs unchanged, as in MCM. It is the default and is not written.
	Keep Strategy = ""
	// DryRun asks the driver what it could change.
	DryRun Strategy = "DryRun"
	// Update changes VMs as far as the driver can.
	Update Strategy = "Update"
)

// Parse returns the update strategy in an object's annotations. If it is invalid, Parse returns Keep and an
// error message.
func Parse(annotations map[string]string) (Strategy, string) {
	switch text := annotations[v1alpha1.AnnotationKeyUpdateStrategy]; Strategy(text) {
	case Keep, DryRun, Update:
		return Strategy(text), ""
	default:
		return Keep, fmt.Sprintf("%.64q is not an update strategy; set %s to %q or %q", text, v1alpha1.AnnotationKeyUpdateStrategy, Update, DryRun)
	}
}

// Of returns the strategy of a Machine, and an error message if it is invalid. The annotation of the Machine
// overrides that of its class.
func Of(machine *v1alpha1.Machine, class *v1alpha1.MachineClass) (Strategy, string) {
	if _, own := machine.Annotations[v1alpha1.AnnotationKeyUpdateStrategy]; own || class == nil {
		return Parse(machine.Annotations)
	}
	return Parse(class.Annotations)
}

// Made is what a VM was created from or updated to.
type Made struct {
	// Digest is the digest of the parts of the class that the driver reads.
	Digest string `json:"digest"`
	// Spec is the provider specification. It is nil if it is too long to store.
	Spec json.RawMessage `json:"providerSpec,omitempty"`
}

// Plan is what an update would change, as the driver reported it, and the progress of the update.
type Plan struct {
	// Digest is the digest, as in Made, of the class that was compared with the VM.
	Digest string `json:"digest"`
	// Class is the name of that class if it is not the Machine's class; see RequestedClass.
	Class string `json:"class,omitempty"`
	// Updates, AtNextStart and Replacements are as in driver.UpdateMachineResponse.
	Updates      []string `json:"updates,omitempty"`
	AtNextStart  []string `json:"atNextStart,omitempty"`
	Replacements []string `json:"replacements,omitempty"`
	// Begun reports that this plan or an earlier one may have changed the VM, so that Made may be out of date.
	Begun bool `json:"begun,omitempty"`
	// Done reports that the updates were made, or that there are none.
	Done bool `json:"done,omitempty"`
}

// longestSpec is the maximum length of a provider specification that is stored with each Machine, in bytes.
const longestSpec = 8 << 10

// MadeFrom returns the Made of a VM that matches a class.
func MadeFrom(class *v1alpha1.MachineClass) Made {
	made := Made{Digest: Digest(class)}
	compact := &bytes.Buffer{}
	if json.Compact(compact, class.ProviderSpec.Raw) == nil && compact.Len() <= longestSpec {
		made.Spec = compact.Bytes()
	}
	return made
}

// Digest returns a digest that is equal for classes from which a driver creates the same VM.
func Digest(class *v1alpha1.MachineClass) string {
	var spec any
	if json.Unmarshal(class.ProviderSpec.Raw, &spec) != nil {
		spec = string(class.ProviderSpec.Raw)
	}
	text, _ := json.Marshal([]any{class.Provider, spec}) // cannot fail: decoded JSON or a string
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// State is the state of the update of a Machine's VM, as stored in the Machine's annotations.
type State struct {
	// Made is nil if it is unknown.
	Made *Made
	// Plan is nil if there is none.
	Plan *Plan
}

// Read returns the state in the annotations of a Machine. Invalid annotations are ignored.
func Read(annotations map[string]string) State {
	return State{
		Made: decode[Made](annotations[v1alpha1.AnnotationKeyMadeFrom]),
		Plan: decode[Plan](annotations[v1alpha1.AnnotationKeyUpdatePlan]),
	}
}

func decode[T any](text string) *T {
	value := new(T)
	if json.Unmarshal([]byte(text), value) != nil {
		return nil
	}
	return value
}

// Write stores the state in the annotations of a Machine, which must not be shared.
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
	text, _ := json.Marshal(value) // cannot fail: plain fields and decoded JSON
	annotations[key] = string(text)
}

// Spec returns the provider specification that the VM was created from. Its Raw is nil if it is unknown.
func (s State) Spec() runtime.RawExtension {
	if s.Made == nil || s.Plan != nil && s.Plan.Begun {
		return runtime.RawExtension{}
	}
	return runtime.RawExtension{Raw: s.Made.Spec}
}

// Step is the next step for the VM of a Machine.
type Step int

// The steps.
const (
	// Nothing means that there is nothing to do.
	Nothing Step = iota
	// Note stores the state that Next returns.
	Note
	// Ask asks the driver what an update would change.
	Ask
	// Change lets the driver make the update.
	Change
)

// Next returns the next step towards a class, and the state to store before it. The VM is known to match the
// class only if that was stored and no update has begun since. If an update is interrupted and then no longer
// requested, the driver undoes it.
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

// settled returns the last step of an update or of a dry run.
func (s State) settled(class *v1alpha1.MachineClass, strategy Strategy) (Step, State) {
	if strategy == Update && len(s.Plan.Replacements) == 0 {
		made := MadeFrom(class)
		return Note, State{Made: &made}
	}
	return Nothing, s
}

// Planned returns the state after the driver has reported what an update to a class would change.
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

// Updated returns the state after the driver has made the update to a class. Differences that require a new VM
// remain in the plan.
func (s State) Updated(class *v1alpha1.MachineClass, updates, atNextStart, replacements []string) State {
	if len(replacements) == 0 {
		made := MadeFrom(class)
		return State{Made: &made}
	}
	return State{Made: s.Made, Plan: &Plan{
		Digest: Digest(class), Updates: updates, AtNextStart: atNextStart, Replacements: replacements, Begun: true, Done: true,
	}}
}

// Effect is the effect of an update to a class on a Machine.
type Effect string

// The effects. Undecided means that the driver has not reported the effect yet.
const (
	Undecided Effect = ""
	None      Effect = "nothing"
	Updates   Effect = "updates"
	Replaces  Effect = "replaces"
)

// Effect returns the effect that an update to a class would have.
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

// Summary describes what the driver reported, such as "replaces (zone), updates (tags)".
func (p *Plan) Summary() string {
	list := func(prefix string, differences []string) string { return prefix + strings.Join(differences, ", ") }
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

// effect returns the effect that the driver reported.
func (p *Plan) effect() Effect {
	switch {
	case len(p.Replacements) > 0:
		return Replaces
	case !p.Done:
		return Updates
	}
	return None
}
