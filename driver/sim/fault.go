package sim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/dice"
	"github.com/millwright-dev/millwright/driver/sim/internal/names"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
	"github.com/millwright-dev/millwright/driver/status"
)

// Fault makes calls of the driver fail. It applies only to the handle of the cloud to which it was added, even if
// the cloud is kept in a directory.
type Fault struct {
	// Method that fails. If empty, every method fails.
	Method Method
	// Machine is a path.Match pattern for the name of the machine, or for "namespace/name" if it contains a slash.
	// If empty, it matches every call, including calls without a machine.
	Machine string
	// Codes are the codes that calls return, in turn and then again from the first. If empty, the code is
	// Unavailable.
	Codes []codes.Code
	// Message of the error. If empty, the message states that the failure is simulated.
	Message string
	// Times is the number of calls that fail. Zero means one call for each code; a negative number means all calls,
	// until the faults are cleared.
	Times int
	// Rate is the fraction of calls that fail, between 0 and 1; the seed determines which calls. Calls that succeed
	// do not count for Times. Zero means all calls.
	Rate float64
	// LostAnswer lets the call take effect before it returns the error, as if its response was lost.
	LostAnswer bool
	// Hang holds the call until its context is done. The call then returns Canceled or DeadlineExceeded, regardless
	// of Codes. With LostAnswer, the call takes effect first.
	Hang bool
}

// armed is a fault with its counters.
type armed struct {
	Fault
	// number distinguishes faults, for the rate.
	number string
	// calls counts by machine, for the rate.
	calls  map[string]int
	failed int
}

// faults are the faults of a cloud.
type faults struct {
	seed uint64

	mu    sync.Mutex
	list  []*armed
	added int
	// scripted are the faults of classes, by the text of their script. Entries of old texts are never removed,
	// since there are only a few.
	scripted map[string][]*armed
}

func (f *faults) add(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, f.arm(fault))
}

// arm returns a fault with its defaults. The caller holds the lock.
func (f *faults) arm(fault Fault) *armed {
	if len(fault.Codes) == 0 {
		fault.Codes = []codes.Code{codes.Unavailable}
	}
	fault.Codes = slices.Clone(fault.Codes)
	if fault.Times == 0 {
		fault.Times = len(fault.Codes)
	}
	f.added++
	return &armed{Fault: fault, number: strconv.Itoa(f.added), calls: map[string]int{}}
}

// of returns the faults of a cloud and those of a class. The caller holds the lock.
func (f *faults) of(script spec.Script) []*armed {
	if script.Text == "" {
		return f.list
	}
	own, known := f.scripted[script.Text]
	if !known {
		for _, s := range script.Faults {
			fault := Fault{
				Method: Method(s.Method), Machine: s.Machine, Message: s.Message,
				Times: s.Times, Rate: s.Rate, LostAnswer: s.LostAnswer, Hang: s.Hang,
			}
			for _, code := range s.Codes {
				fault.Codes = append(fault.Codes, codes.StringToCode(code))
			}
			own = append(own, f.arm(fault))
		}
		if f.scripted == nil {
			f.scripted = map[string][]*armed{}
		}
		f.scripted[script.Text] = own
	}
	return slices.Concat(f.list, own)
}

func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = nil
}

// next returns the first fault that applies to a call, and the error that the call returns, or nil. The machine may
// be empty.
func (f *faults) next(c call) (*armed, error) {
	method, machine := c.method, c.key
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.of(c.spec.Script) {
		if a.Method != "" && a.Method != method || a.Machine != "" && (machine == "" || !names.Matches(a.Machine, machine)) {
			continue
		}
		if code, ok := a.fire(f.seed, method, machine); ok {
			return a, a.error(code, method, machine)
		}
	}
	return nil, nil
}

// fire counts a call, and returns whether the call fails and with which code.
func (a *armed) fire(seed uint64, method Method, machine string) (codes.Code, bool) {
	if a.Times >= 0 && a.failed >= a.Times {
		return 0, false
	}
	call := a.calls[machine]
	a.calls[machine]++
	if a.Rate > 0 && dice.Chance(strconv.FormatUint(seed, 10), "fault", a.number,
		string(method), machine, strconv.Itoa(call)) >= a.Rate {
		return 0, false
	}
	code := a.Codes[a.failed%len(a.Codes)]
	a.failed++
	return code, true
}

func (a *armed) error(code codes.Code, method Method, machine string) error {
	message := a.Message
	if message == "" {
		message = fmt.Sprintf("simulated failure of %s for %q", method, machine)
	}
	// Use New, because Error returns nil for OK, and a test may want an error with that code.
	return status.New(code, message)
}

// contextError returns the status for a context that is done.
func contextError(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return status.WrapError(codes.DeadlineExceeded, "the simulated call did not complete in time", ctx.Err())
	}
	return status.WrapError(codes.Canceled, "the simulated call was canceled", ctx.Err())
}
