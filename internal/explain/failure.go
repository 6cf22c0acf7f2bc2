package explain

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// The sentences that the manager writes around a provider's words, which are those of MCM.
const (
	sayProvider   = "Cloud provider message - "
	sayInitialize = "Initialize VM Instance"
	sayVMDeletion = "Initiate VM deletion"
	sayDrain      = "Initiate node drain"
	sayTerminate  = "Set machine status to termination. Now, getting VM Status"
	sayVolumes    = "Delete Volume Attachments"
	sayNode       = "Initiate node object deletion"
)

// failure is a driver's error as a Machine's last operation tells it.
type failure struct {
	code codes.Code
	// text is the provider's own.
	text string
	// method is CreateMachine, InitializeMachine or DeleteMachine.
	method string
	// since is when this was first said.
	since time.Time
}

// failureOf reads a driver's error from the last operation, if it was one.
func failureOf(last v1alpha1.LastOperation) (failure, bool) {
	text, said := strings.CutPrefix(last.Description, sayProvider)
	text = strings.TrimSuffix(strings.TrimSpace(strings.TrimSuffix(text, sayVMDeletion)), ".")
	if rest, ok := strings.CutPrefix(text, "Provider error: "); ok {
		text, said = strings.TrimSuffix(rest, ". "+sayInitialize), true
	}
	parsed, coded := status.FromError(errors.New(text))
	if last.State != v1alpha1.MachineStateFailed || !said && !coded && last.ErrorCode == "" {
		return failure{}, false
	}
	found := failure{code: parsed.Code(), text: parsed.Message(), method: "CreateMachine", since: last.LastUpdateTime.Time}
	if last.ErrorCode != "" {
		found.code = codes.StringToCode(last.ErrorCode)
	}
	switch {
	case last.Type == v1alpha1.MachineOperationDelete:
		found.method = "DeleteMachine"
	case strings.HasSuffix(last.Description, sayInitialize):
		found.method = "InitializeMachine"
	}
	return found, true
}

func (e *explainer) driverFailed(f failure) {
	e.report.Why = append(e.report.Why, Finding{Cause: DriverError, Code: f.code.String(), Text: sentence("%s", f.text), Since: f.since})
	e.next(time.Time{}, "The driver is asked again %s; at once when the machine, its class or its secret changes", f.again())
	if advice := f.advice(e.className()); advice != "" {
		e.advise("%s", advice)
	}
}

func (e *explainer) className() string { return e.Machine.Spec.Class.Name }

// again says how often a call is tried. When exactly is known to the manager only.
func (f failure) again() string {
	switch f.code {
	case codes.InvalidArgument, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition, codes.Unimplemented, codes.OutOfRange:
		return "after 3m at first, then less and less often, at least every 30m"
	case codes.ResourceExhausted:
		switch f.method {
		case "CreateMachine":
			return "every 10m (the manager's --resource-exhausted-retry)"
		case "DeleteMachine":
			return "after 3m at first, then less and less often, at least every 30m"
		}
	case codes.Internal, codes.DataLoss, codes.Unauthenticated:
		if f.method == "DeleteMachine" {
			return "after 5s at first, then less and less often, at least every 10m"
		}
		return "after 5s at first, then less and less often, at least every 3m"
	}
	return "after 1s at first, then less and less often, at least every minute"
}

// advice says what helps against a code; empty where only patience does.
func (f failure) advice(class string) string {
	switch f.code {
	case codes.ResourceExhausted:
		return "Free capacity or raise the quota at the provider, or use a class of another zone or size"
	case codes.InvalidArgument, codes.OutOfRange:
		return fmt.Sprintf("Correct the providerSpec of MachineClass %s: the message names the field", class)
	case codes.PermissionDenied, codes.Unauthenticated:
		return fmt.Sprintf("Correct the credentials in the secret of MachineClass %s, or what they are allowed to do", class)
	case codes.AlreadyExists:
		return "Remove the other VM at the provider, if it is nobody's; a machine of a set gets a successor with another name"
	case codes.FailedPrecondition:
		return "Repair the VM at the provider: its state does not allow what is asked"
	case codes.Unimplemented:
		return "The driver does not support this: look at its documentation"
	case codes.Internal, codes.DataLoss:
		return "Look for the message in the provider's own log or console"
	default:
		return ""
	}
}
