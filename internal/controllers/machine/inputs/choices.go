package inputs

import (
	"cmp"
	"context"
	"fmt"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
)

// Choices are the classes that a Machine may have instead of its own.
type Choices struct {
	// Others are those that can be taken, in order.
	Others []*v1alpha1.MachineClass
	// Problem is why one of them cannot be taken; empty if all can.
	Problem string
}

// Versions names the other classes as they are now; empty if there are none.
func (c Choices) Versions() string {
	text := ""
	for _, class := range c.Others {
		text += fmt.Sprintf("%s %s %d\n", class.Name, class.UID, class.Generation)
	}
	return text
}

// Choices returns the classes that a Machine may have instead of its own class.
func (r Reader) Choices(ctx context.Context, machine *v1alpha1.Machine, class *v1alpha1.MachineClass) (Choices, error) {
	of := Choices{}
	for _, name := range scarcity.OfMachine(machine) {
		if name == class.Name {
			continue
		}
		other := machine.DeepCopy()
		other.Spec.Class.Name = name
		inputs, problem, err := r.OfMachine(ctx, other)
		if err != nil {
			return Choices{}, err
		}
		if inputs.Class != nil {
			problem = cmp.Or(scarcity.Unfit(class, inputs.Class), problem, inputs.Invalid())
		}
		if problem == "" {
			of.Others = append(of.Others, inputs.Class)
		} else if of.Problem == "" {
			of.Problem = fmt.Sprintf("Machines cannot fall back to class %s: %s", name, problem)
		}
	}
	return of, nil
}
