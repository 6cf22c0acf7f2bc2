package liveupdate

import "github.com/millwright-dev/millwright/api/machine/v1alpha1"

// RequestedClass returns the class whose effect the driver of a Machine is requested to report. If the Machine
// already has that class, the update to it is in progress. It is empty if there is no request.
func RequestedClass(machine *v1alpha1.Machine) string {
	return machine.Annotations[v1alpha1.AnnotationKeyUpdateClass]
}

// Query returns the next step to find out what an update to a class that the Machine does not have would
// change. It returns Nothing once that is known. No step changes the VM.
func (s State) Query(class *v1alpha1.MachineClass) (Step, State) {
	digest := Digest(class)
	switch {
	case s.Plan != nil && s.Plan.Digest == digest && s.Plan.Class == class.Name:
		return Nothing, s
	case s.Made != nil && s.Made.Digest == digest && (s.Plan == nil || !s.Plan.Begun):
		return Note, State{Made: s.Made, Plan: &Plan{Digest: digest, Class: class.Name, Done: true}}
	}
	return Ask, s
}

// Queried returns the state after the driver has reported what an update to a class that the Machine does not
// have would change.
func (s State) Queried(class *v1alpha1.MachineClass, updates, atNextStart, replacements []string) State {
	next := s.Planned(class, DryRun, updates, atNextStart, replacements)
	next.Plan.Class = class.Name
	return next
}

// EffectOn returns the effect of an update to the class of that name on a Machine, as far as its driver has
// reported it. It ignores later edits of the class.
func (s State) EffectOn(class string) Effect {
	if s.Plan == nil || s.Plan.Class != class {
		return Undecided
	}
	return s.Plan.effect()
}

// Settled reports whether the VM of a Machine matches its class, or can match it only after a replacement.
func Settled(s State, class *v1alpha1.MachineClass) bool {
	effect := s.Effect(class)
	done := s.Plan == nil || effect == Replaces && s.Plan.Done
	return done && effect != Undecided
}
