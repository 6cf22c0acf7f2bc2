package vmupdate

import (
	"bytes"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
)

// What makes a class one for other VMs, whatever the driver says.
const (
	otherProvider = "provider"
	otherUserData = "user data: it has effect only when a VM is created"
	otherPlace    = "the class leads to where the VM is not"
)

// about looks at the class that somebody asks about.
func (p *pass) about(ctx context.Context, name string) error {
	asked, err := p.classOf(ctx, p.Machine, name)
	if asked == nil {
		if err == nil {
			p.absent(name)
		}
		return err
	}
	return p.answer(ctx, asked)
}

// answer notes what an update to another class would change in the VM, which stays as it is.
func (p *pass) answer(ctx context.Context, asked *v1alpha1.MachineClass) error {
	step, next := p.state.Answer(asked)
	switch {
	case step == liveupdate.Nothing:
		return nil
	case asked.Provider != p.class.Provider:
		return p.note(ctx, p.state.Answered(asked, nil, nil, []string{otherProvider}))
	}
	theirs, missing, err := p.inputsOf(ctx, asked)
	if err != nil || missing {
		return err
	}
	ours, unknown, err := p.Inputs.OfClass(ctx, p.class)
	if err != nil {
		return err
	}
	switch {
	case unknown != "" || !bytes.Equal(ours.Secret.Data[bootstrap.UserDataKey], theirs.Secret.Data[bootstrap.UserDataKey]):
		return p.note(ctx, p.state.Answered(asked, nil, nil, []string{otherUserData}))
	case step == liveupdate.Note:
		return p.note(ctx, next)
	}
	result := p.Engine.Plan(instance.Request{Machine: p.Machine, Class: theirs.Class, Secret: theirs.Secret, MadeFrom: p.state.Spec()})
	if failed, ok := result.(instance.Failed); ok && failed.Failure.Code == codes.NotFound {
		return p.note(ctx, p.state.Answered(asked, nil, nil, []string{otherPlace}))
	}
	d, done := p.compared(result)
	if !done {
		return nil
	}
	return p.note(ctx, p.state.Answered(asked, d.Updates, d.AtNextStart, d.Replacements))
}

// classOf returns a class of the Machine's namespace; nil if it does not exist.
func (u Updater) classOf(ctx context.Context, machine *v1alpha1.Machine, name string) (*v1alpha1.MachineClass, error) {
	class := &v1alpha1.MachineClass{}
	err := u.Inputs.Client.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: name}, class, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading MachineClass %s: %w", name, err)
	}
	return class, nil
}

// absent warns that the class that is asked about does not exist.
func (p *pass) absent(name string) {
	p.Events.WarnOrForget(topicInputs, passevents.Event{Reason: reasonFailed, Message: fmt.Sprintf("MachineClass %q not found in namespace %q", name, p.Machine.Namespace)})
}

// conclude ends the update to a class that the Machine got from its deployment.
func (p *pass) conclude(ctx context.Context) error {
	return p.Annotate(ctx, func(machine *v1alpha1.Machine) { delete(machine.Annotations, v1alpha1.AnnotationKeyUpdateClass) })
}
