package machine

import (
	"bytes"
	"context"
	"fmt"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
)

// Differences between classes that always need a replacement, whatever the driver reports.
const (
	differentProvider = "provider"
	differentUserData = "user data: it takes effect only when a VM is created"
	differentLocation = "the driver does not find the VM with the new class"
)

// planClass stores what an update to another class would change in the instance, without changing it. A
// MachineDeployment requests that.
func (u *liveUpdater) planClass(ctx context.Context, s *liveUpdateScope, name string) error {
	requested, err := u.inputs.readClass(ctx, s.machine.Namespace, name)
	if err != nil {
		return err
	}
	if requested == nil {
		s.events.warnOrForget(topicLiveInputs, pendingEvent{reason: reasonLiveUpdateFailed, message: fmt.Sprintf("MachineClass %q not found in namespace %q", name, s.machine.Namespace)})
		return nil
	}
	step, next := s.state.Query(requested)
	if step == liveupdate.Nothing {
		return nil
	}
	in, difference, err := u.compare(ctx, s, requested)
	switch {
	case err != nil:
		return err
	case difference != "":
		return u.storeResult(ctx, s, s.state.Queried(requested, nil, nil, []string{difference}))
	case in.class == nil:
		return nil
	case step == liveupdate.Note:
		return u.storeResult(ctx, s, next)
	}
	result := u.Engine.Plan(instance.Request{Machine: s.machine, Class: in.class, Secret: in.secret, MadeFrom: s.state.Spec()})
	if failed, ok := result.(instance.Failed); ok && failed.Failure.Code == codes.NotFound {
		return u.storeResult(ctx, s, s.state.Queried(requested, nil, nil, []string{differentLocation}))
	}
	d, compared := s.compared(result)
	if !compared {
		return nil
	}
	return u.storeResult(ctx, s, s.state.Queried(requested, d.Updates, d.AtNextStart, d.Replacements))
}

// compare returns the inputs for the requested class, and a difference from the current class that always
// requires a replacement. If inputs are missing, in.class is nil.
func (u *liveUpdater) compare(ctx context.Context, s *liveUpdateScope, requested *v1alpha1.MachineClass) (in classInputs, difference string, err error) {
	if requested.Provider != s.current.Provider {
		return classInputs{}, differentProvider, nil
	}
	in, missing, err := u.inputsOf(ctx, s, requested)
	if err != nil || missing {
		return classInputs{}, "", err
	}
	same, err := u.sameUserData(ctx, s.current, in)
	if err == nil && !same {
		difference = differentUserData
	}
	return in, difference, err
}

// sameUserData reports whether the class and other have the same user data. Missing inputs count as different.
func (u *liveUpdater) sameUserData(ctx context.Context, class *v1alpha1.MachineClass, other classInputs) (bool, error) {
	in, missing, err := u.inputs.ofClass(ctx, class)
	if err != nil || missing != "" {
		return false, err
	}
	return bytes.Equal(in.secret.Data[bootstrap.UserDataKey], other.secret.Data[bootstrap.UserDataKey]), nil
}
