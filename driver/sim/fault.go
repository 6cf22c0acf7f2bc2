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

// Fault makes calls of the driver fail. It applies to the handle of the cloud to which it
// was added, also if the cloud is kept in a directory.
type Fault struct {
	// Method that fails. Empty means every method.
	Method Method
	// Machine is a pattern of path.Match for the name of the machine, or for
	// "namespace/name" if it contains a slash. Empty means every call, also those
	// without a machine.
	Machine string
	// Codes are the codes of the answers, in turn and then from the first again. Empty
	// means Unavailable.
	Codes []codes.Code
	// Message of the error. Empty means one that says that the failure is simulated.
	Message string
	// Times is how many calls fail. Zero means one call for each code; negative
	// means all calls, until the faults are cleared.
	Times int
	// Rate is the fraction of the calls that fail, between 0 and 1; the seed decides
	// which. Calls that do not fail do not count for Times. Zero means all.
	Rate float64
	// LostAnswer lets the call take effect before it is answered with the error, as if
	// its answer was lost.
	LostAnswer bool
	// Hang holds the call until its context ends. The answer is then Canceled or
	// DeadlineExceeded, whatever Codes says. With LostAnswer, the call takes effect
	// first.
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
	// scripted are the faults of classes, by the text of their script. Those of a text that is gone are
	// kept: few are ever written.
	scripted map[string][]*armed
}

func (f *faults) add(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, f.arm(fault))
}

// arm returns a fault with its defaults. The lock is held.
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

// of returns the faults of a cloud, and those of a class. The lock is held.
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

// next returns the first fault that applies to a call and the error of its answer, or nil. The
// machine may be empty.
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

// fire counts a call, and returns its code and whether it fails.
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
	// New, since Error returns nil for OK: a test may want an error with that code.
	return status.New(code, message)
}

// contextError returns the status for the end of a context.
func contextError(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return status.WrapError(codes.DeadlineExceeded, "the simulated call was not done in time", ctx.Err())
	}
	return status.WrapError(codes.Canceled, "the simulated call was cancelled", ctx.Err())
}
