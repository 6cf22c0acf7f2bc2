package instance

import (
	"context"
	"errors"
	"fmt"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// ensure looks for the instance, and creates it only if there is none and never was.
func (e *Engine) ensure(ctx context.Context, req Request) Answer {
	resp, err := e.driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
	stored := req.Machine.Spec.ProviderID != ""
	switch code := codeOf(err); {
	case code == codes.OK:
		return complete(MethodStatus, req, Answer{Instance: Instance(*resp)})
	case code == codes.Uninitialized && resp != nil:
		return e.initialize(ctx, req, Answer{Instance: Instance(*resp)})
	case code == codes.NotFound && stored:
		return Answer{State: Lost}
	case code == codes.Unimplemented && stored:
		return complete(MethodStatus, req, Answer{Instance: storedInstance(req.Machine)})
	case code == codes.NotFound || code == codes.Unimplemented:
		return e.create(ctx, req)
	default:
		return failed(MethodStatus, err)
	}
}

// storedInstance is what the Machine itself says of its instance.
func storedInstance(machine *v1alpha1.Machine) Instance {
	return Instance{ProviderID: machine.Spec.ProviderID, NodeName: machine.Labels[v1alpha1.NodeLabelKey], Addresses: machine.Status.Addresses}
}

func (e *Engine) create(ctx context.Context, req Request) Answer {
	secret := req.Secret
	if req.Prepare != nil {
		var err error
		if secret, err = req.Prepare(ctx); err != nil {
			return failed(MethodPrepare, err)
		}
	}
	resp, err := e.driver.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: req.Machine, MachineClass: req.Class, Secret: secret})
	if err != nil {
		answer := failed(MethodCreate, err)
		if resp != nil && resp.LastKnownState != "" {
			answer.LastKnownState = &resp.LastKnownState
		}
		return answer
	}
	req.Secret = secret
	return e.initialize(ctx, req, Answer{
		Created:        true,
		LastKnownState: &resp.LastKnownState,
		Instance:       Instance{ProviderID: resp.ProviderID, NodeName: resp.NodeName, Addresses: resp.Addresses},
	})
}

// initialize takes the steps that follow creation, if the driver has any. If they
// fail, the instance is part of the answer all the same.
func (e *Engine) initialize(ctx context.Context, req Request, answer Answer) Answer {
	initializer, ok := e.driver.(driver.Initializer)
	if !ok {
		return complete(MethodCreate, req, answer)
	}
	resp, err := initializer.InitializeMachine(ctx, &driver.InitializeMachineRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
	switch codeOf(err) {
	case codes.OK:
		answer.Instance.Addresses = append(answer.Instance.Addresses, resp.Addresses...)
	case codes.Unimplemented:
	default:
		answer.State, answer.Failure = Failed, failed(MethodInitialize, err).Failure
		return answer
	}
	return complete(MethodInitialize, req, answer)
}

// complete checks that the driver named what cannot be done without.
func complete(method Method, req Request, answer Answer) Answer {
	if answer.Instance.ProviderID == "" {
		return failed(method, status.Error(codes.Internal, "the driver named no provider ID"))
	}
	if req.NodeExpected && answer.Instance.NodeName == "" {
		return failed(method, status.Error(codes.Internal, "the driver named no node"))
	}
	answer.State = Exists
	return answer
}

// delete removes the instance, and believes that it is gone when the driver says so
// in answer to a question of its own.
func (e *Engine) delete(ctx context.Context, req Request) Answer {
	resp, err := e.driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
	var note *string
	if resp != nil {
		note = &resp.LastKnownState
	}
	if code := codeOf(err); code != codes.OK && code != codes.NotFound {
		answer := failed(MethodDelete, err)
		answer.LastKnownState = note
		return answer
	}
	_, err = e.driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
	switch codeOf(err) {
	case codes.NotFound, codes.Unimplemented:
		return Answer{State: Gone, LastKnownState: note}
	case codes.OK, codes.Uninitialized:
		return Answer{State: Remains, LastKnownState: note}
	default:
		return failed(MethodStatus, err)
	}
}

func failed(method Method, err error) Answer {
	return Answer{State: Failed, Failure: &Failure{Method: method, Code: codeOf(err), Err: err}}
}

// codeOf classifies an error. What is not a status of the driver is Unknown, and so
// are calls that were cut off on our side.
func codeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if parsed, ok := status.FromError(err); ok {
		return parsed.Code()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return codes.DeadlineExceeded
	}
	return codes.Unknown
}

// Error says what went wrong, in the words of the driver.
func (f *Failure) Error() string { return fmt.Sprintf("%s: %v", f.Method, f.Err) }

// Unwrap gives the driver's error.
func (f *Failure) Unwrap() error { return f.Err }
