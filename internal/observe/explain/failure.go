package explain

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
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
	text, said := strings.CutPrefix(last.Description, messages.Provider)
	text = strings.TrimSuffix(strings.TrimSpace(strings.TrimSuffix(text, messages.DeleteVM)), ".")
	if rest, ok := strings.CutPrefix(text, messages.ProviderError); ok {
		text, said = strings.TrimSuffix(rest, ". "+messages.Initialize), true
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
	case strings.HasSuffix(last.Description, messages.Initialize):
		found.method = "InitializeMachine"
	}
	return found, true
}

func (e *explainer) driverFailed(f failure) {
	e.report.Why = append(e.report.Why, Finding{Cause: DriverError, Code: f.code.String(), Text: sentence("%s", f.text), Since: f.since})
	e.retried(f)
	if advice := f.advice(e.className()); advice != "" {
		e.advise("%s", advice)
	}
}

// retried says when the driver is asked again. The time is known after the first failure
// only: the same error again is not written down, and its number is in the manager's memory.
func (e *explainer) retried(f failure) {
	again, begin := f.again(e.Timeouts), f.since
	if worked := e.worked(); worked.After(begin) {
		begin = worked
	}
	step := Step{Text: sentence("The driver is asked again %v; at once when the machine, its class or its secret changes", again)}
	if due := begin.Add(again.first); due.After(e.now) {
		step.At, step.Earliest = due, true
	}
	e.report.Next = append(e.report.Next, step)
}

func (e *explainer) className() string { return e.Machine.Spec.Class.Name }

// retry is a range of waiting times: first after the first failure, more after each further
// one, and never more than last.
type retry struct{ first, last time.Duration }

func (r retry) String() string {
	if r.first == r.last {
		return fmt.Sprintf("every %s (if the manager's --resource-exhausted-retry is that)", brief(r.first))
	}
	return fmt.Sprintf("after %s at first, then less and less often, at least every %s", brief(r.first), brief(r.last))
}

// The ranges of docs/error-codes.md.
var (
	soon = retry{time.Second, time.Minute}
	slow = retry{3 * time.Minute, 30 * time.Minute}
)

// again says how often a call is tried.
func (f failure) again(flags Timeouts) retry {
	switch f.code {
	case codes.InvalidArgument, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition, codes.Unimplemented, codes.OutOfRange:
		return slow
	case codes.ResourceExhausted:
		switch f.method {
		case "CreateMachine":
			every := cmp.Or(flags.ResourceExhausted, DefaultResourceExhaustedRetry)
			return retry{every, every}
		case "DeleteMachine":
			return slow
		}
	case codes.Internal, codes.DataLoss, codes.Unauthenticated:
		const first = 5 * time.Second
		if f.method == "DeleteMachine" {
			return retry{first, 10 * time.Minute}
		}
		sixth := cmp.Or(flags.Creation, DefaultCreationTimeout) / 6
		return retry{first, max(first, min(3*time.Minute, sixth))}
	}
	return soon
}

// advice says what helps against a code; empty where only patience does.
func (f failure) advice(class string) string {
	switch f.code {
	case codes.ResourceExhausted:
		return "Free capacity or raise the quota at the provider, or use a class of another zone or size"
	case codes.InvalidArgument, codes.OutOfRange:
		return fmt.Sprintf("Correct the providerSpec of MachineClass %s: the message names the field", class)
	case codes.PermissionDenied:
		correct := fmt.Sprintf("Correct the credentials in the secret of MachineClass %s, or the driver's own if it has none, or what they are allowed to do", class)
		if f.method == "CreateMachine" {
			correct += ". If the class names something by mistake, such as a pool or a project, correct that"
		}
		return correct
	case codes.Unauthenticated:
		return fmt.Sprintf("Correct the credentials in the secret of MachineClass %s, or the driver's own if it has none", class)
	case codes.AlreadyExists:
		return "Remove the other VM at the provider, if it is nobody's; a machine of a set gets a successor with another name"
	case codes.FailedPrecondition:
		if f.method == "CreateMachine" {
			return fmt.Sprintf("Have MachineClass %s name another one of what the message says, or mend that at the provider: the VM needs something that is not there, or not in a state for it", class)
		}
		return "Repair the VM at the provider: its state does not allow what is asked"
	case codes.Unimplemented:
		return "The driver does not support this: look at its documentation"
	case codes.Internal, codes.DataLoss:
		return "Look for the message in the provider's own log or console"
	default:
		return ""
	}
}
