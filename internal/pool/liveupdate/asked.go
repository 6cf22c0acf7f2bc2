package liveupdate

import "github.com/millwright-dev/millwright/api/machine/v1alpha1"

// Asked returns the name of the class of which a Machine says that its driver is to be asked about an update to it; or, if
// the Machine has that class already, that the update is under way. It is empty if the Machine says neither.
func Asked(machine *v1alpha1.Machine) string {
	return machine.Annotations[v1alpha1.AnnotationKeyUpdateClass]
}

// Answer is the step by which it becomes known what an update to a class that the Machine does not have would change:
// Nothing once that is known. No step changes the VM.
func (s State) Answer(class *v1alpha1.MachineClass) (Step, State) {
	digest := Digest(class)
	switch {
	case s.Plan != nil && s.Plan.Digest == digest && s.Plan.Class == class.Name:
		return Nothing, s
	case s.Made != nil && s.Made.Digest == digest && (s.Plan == nil || !s.Plan.Begun):
		return Note, State{Made: s.Made, Plan: &Plan{Digest: digest, Class: class.Name, Done: true}}
	}
	return Ask, s
}

// Answered is the state after the driver has said what an update to a class that the Machine does not have would
// change.
func (s State) Answered(class *v1alpha1.MachineClass, updates, atNextStart, replacements []string) State {
	next := s.Planned(class, DryRun, updates, atNextStart, replacements)
	next.Plan.Class = class.Name
	return next
}

// EffectOn says what an update to the class of that name does to a Machine, as far as its driver has answered. It does
// not know whether the class was edited since.
func (s State) EffectOn(class string) Effect {
	if s.Plan == nil || s.Plan.Class != class {
		return Undecided
	}
	return s.Plan.effect()
}

// Settled reports whether the VM of a Machine is as its class says, or cannot become so without a new one.
func Settled(s State, class *v1alpha1.MachineClass) bool {
	effect := s.Effect(class)
	done := s.Plan == nil || effect == Replaces && s.Plan.Done
	return done && effect != Undecided
}
