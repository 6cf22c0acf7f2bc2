package machine

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// failure is a driver's error.
type failure struct {
	code   codes.Code
	method timeouts.Method
}

// failure returns the driver's error that the Machine waits for now, if it does: by the code in
// the last operation, which creations have, or by the event of it.
func (e *explainer) failure() (failure, bool) {
	last := e.last()
	if last.State != v1alpha1.MachineStateFailed {
		return failure{}, false
	}
	found := failure{codes.StringToCode(last.ErrorCode), timeouts.Create}
	begin := e.Machine.CreationTimestamp.Time
	if last.Type == v1alpha1.MachineOperationDelete {
		found.method, begin = timeouts.Delete, e.Machine.DeletionTimestamp.Time
	}
	note := e.noted(begin)
	if note == nil || report.CauseOf(note) != v1alpha1.CauseDriverFailed {
		return found, last.ErrorCode != ""
	}
	found.method = timeouts.Method(note.Annotations[v1alpha1.EventAnnotationMethod])
	if last.ErrorCode == "" {
		found.code = codes.StringToCode(note.Annotations[v1alpha1.EventAnnotationCode])
	}
	return found, true
}

func (e *explainer) driverFinding(f failure) report.Finding {
	advice := e.Text(Advice(f.code, f.method == timeouts.Create))
	return report.Finding{Cause: report.DriverFailed, Code: f.code.String(), Text: e.Text("{text}", "{text}", e.says()), Since: e.reported(), Remedy: advice}
}

// driverFailed says that the driver failed, and when it is asked again. The time is known after
// the first failure only: the same error again is not written down, and its number is in the
// manager's memory.
func (e *explainer) driverFailed(f failure) {
	e.Add(e.driverFinding(f))
	again := timeouts.Policy{ResourceExhausted: e.Flags.ResourceExhausted, CreationTimeout: e.Flags.Creation}.Backoff(f.method, f.code)
	due := timeouts.Timeout{Duration: again.Duration}.Ends(e.reported(), report.Led(e.Lease))
	if !due.After(e.now) {
		due = time.Time{}
	}
	e.Earliest(due, askAgain, "{again}", describeBackoff(again))
}

func describeBackoff(b wait.Backoff) string {
	if b.Duration == b.Cap {
		return fmt.Sprintf("every %s (if the manager's --resource-exhausted-retry is that)", messages.Duration(b.Duration))
	}
	return fmt.Sprintf("after %s at first, then less and less often, at least every %s", messages.Duration(b.Duration), messages.Duration(b.Cap))
}
