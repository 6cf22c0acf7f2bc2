package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// ensure creates the instance only if there is none and never was.
func (e *Engine) ensure(ctx context.Context, req Request) Answer {
	p, err := e.locate(ctx, req)
	if err != nil {
		return failed(MethodStatus, err)
	}
	known := req.Machine.Spec.ProviderID != ""
	resp, err := e.status(ctx, req)
	switch code := codeOf(err); {
	case code == codes.OK:
		return found(req, resp, err, p)
	case code == codes.Uninitialized:
		return e.initialize(ctx, req, found(req, resp, err, p))
	case code == codes.Unimplemented && known:
		stored := Instance{ProviderID: req.Machine.Spec.ProviderID, NodeName: req.Machine.Labels[v1alpha1.NodeLabelKey], Addresses: req.Machine.Status.Addresses}
		return complete(MethodStatus, req, Answer{Instance: stored})
	case code != codes.NotFound && code != codes.Unimplemented:
		return failed(MethodStatus, err)
	case p.elsewhere():
		return p.failure()
	case known:
		return Answer{State: Lost}
	}
	if answer, spent := e.spent(ctx, req); spent {
		return answer
	}
	return e.begin(ctx, req, p)
}

func (e *Engine) find(ctx context.Context, req Request) Answer {
	p, err := e.locate(ctx, req)
	if err != nil {
		return failed(MethodStatus, err)
	}
	resp, err := e.status(ctx, req)
	switch code := codeOf(err); {
	case code == codes.OK || code == codes.Uninitialized:
		if resp == nil {
			return failed(MethodStatus, unnamed(err))
		}
		answer := Answer{State: Exists, Instance: Instance(*resp), Location: p.news()}
		answer.Instance.reduce(req)
		if wrong := answer.Instance.unstorable(); wrong != "" {
			return failed(MethodStatus, status.Error(codes.Internal, wrong))
		}
		return answer
	case code != codes.NotFound && code != codes.Unimplemented:
		return failed(MethodStatus, err)
	case p.elsewhere():
		return p.failure()
	}
	return Answer{State: Gone}
}

func (e *Engine) status(ctx context.Context, req Request) (*driver.GetMachineStatusResponse, error) {
	return e.driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
}

func found(req Request, resp *driver.GetMachineStatusResponse, err error, p place) Answer {
	if resp == nil {
		return failed(MethodStatus, unnamed(err))
	}
	return complete(MethodStatus, req, Answer{Instance: Instance(*resp), Location: p.news()})
}

func (e *Engine) create(ctx context.Context, req Request) Answer {
	secret := req.Secret
	if req.Prepare != nil {
		if !e.proceed(req) {
			return failed(MethodPrepare, context.Canceled)
		}
		var err error
		if secret, err = req.Prepare(ctx); err != nil {
			return failed(MethodPrepare, err)
		}
	}
	if !e.proceed(req) {
		return failed(MethodCreate, context.Canceled)
	}
	if req.Capacity != nil {
		req.Capacity.Asking()
	}
	resp, err := e.driver.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: req.Machine, MachineClass: req.Class, Secret: secret})
	code := codeOf(err)
	answer := failed(MethodCreate, err)
	if req.Capacity != nil {
		answer.Fallback, answer.again = req.Capacity.Asked(code)
	}
	switch {
	case code == codes.OK && resp == nil:
		return failed(MethodCreate, unnamed(err))
	case code == codes.OK, code == codes.Uninitialized && resp != nil:
		req.Secret = secret
		return e.initialize(ctx, req, complete(MethodCreate, req, Answer{
			Created:        true,
			LastKnownState: note(resp.LastKnownState),
			Instance:       Instance{ProviderID: resp.ProviderID, NodeName: resp.NodeName, Addresses: resp.Addresses, FailureDomain: resp.FailureDomain},
		}))
	}
	if resp != nil && resp.LastKnownState != "" {
		answer.LastKnownState = note(resp.LastKnownState)
	}
	if answer.Fallback == FallsBack {
		return e.vacated(ctx, req, answer)
	}
	return answer
}

// initialize initializes a complete instance, if the driver can. If that fails, the answer has the
// instance all the same.
func (e *Engine) initialize(ctx context.Context, req Request, answer Answer) Answer {
	initializer, ok := e.driver.(driver.Initializer)
	if !ok || answer.State != Exists {
		return answer
	}
	resp, err := initializer.InitializeMachine(ctx, &driver.InitializeMachineRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
	switch codeOf(err) {
	case codes.OK:
		if resp != nil {
			for _, address := range resp.Addresses { // new ones or all, depending on the driver
				if !slices.Contains(answer.Instance.Addresses, address) {
					answer.Instance.Addresses = append(answer.Instance.Addresses, address)
				}
			}
			answer.Instance.Addresses = storable(answer.Instance.Addresses)
		}
	case codes.Unimplemented:
	default:
		answer.State, answer.Failure = Failed, failed(MethodInitialize, err).Failure
	}
	return answer
}

// complete checks that the driver named what is required, and what can be stored: the API server would
// refuse the whole Machine for the rest. If not, only its LastKnownState is kept.
func complete(method Method, req Request, answer Answer) Answer {
	answer.Instance.reduce(req)
	wrong := answer.Instance.unstorable()
	switch {
	case answer.Instance.ProviderID == "":
		wrong = "the driver named no provider ID"
	case wrong == "" && req.NodeExpected && answer.Instance.NodeName == "":
		wrong = "the driver named no node"
	}
	if wrong == "" {
		answer.State = Exists
		return answer
	}
	incomplete := failed(method, status.Error(codes.Internal, wrong))
	incomplete.LastKnownState = answer.LastKnownState
	return incomplete
}

// reduce leaves out what is not needed, and cannot be stored.
func (i *Instance) reduce(req Request) {
	i.Addresses = storable(i.Addresses)
	if !req.NodeExpected && len(validation.IsValidLabelValue(i.NodeName)) > 0 {
		i.NodeName = ""
	}
	if len(i.FailureDomain) > longestDomain || !Printable(i.FailureDomain) {
		i.FailureDomain = ""
	}
}

// unstorable returns what of an instance no API server stores; empty if nothing.
func (i *Instance) unstorable() string {
	switch {
	case len(i.ProviderID) > longestID || !Printable(i.ProviderID):
		return "the driver named a provider ID that cannot be stored"
	case len(validation.IsValidLabelValue(i.NodeName)) > 0:
		return "the driver named a node whose name cannot be the value of a label"
	}
	return ""
}

const (
	// longestID is how many bytes a provider ID may have.
	longestID = 2048
	// longestDomain is how many bytes the name of a failure domain may have, by Cluster API's limit.
	longestDomain = 256
	// mostAddresses is how many addresses of an instance are stored, and longestAddress how many bytes
	// each may have.
	mostAddresses  = 64
	longestAddress = 256
)

// storable returns the addresses that can be stored with a machine.
func storable(addresses []corev1.NodeAddress) []corev1.NodeAddress {
	if bad := slices.IndexFunc(addresses, unusable); bad >= 0 {
		addresses = slices.DeleteFunc(slices.Clone(addresses), unusable)
	}
	return addresses[:min(len(addresses), mostAddresses)]
}

func unusable(a corev1.NodeAddress) bool {
	text := string(a.Type) + a.Address
	return len(text) > longestAddress || !Printable(text)
}

// Printable reports whether a text of a driver is UTF-8 in one line that controls no terminal.
func Printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// LongestNote is how many bytes of a driver's LastKnownState are stored.
const LongestNote = 64 << 10

// note returns a driver's LastKnownState, and nil if no API server would store it as it is.
func note(text string) *string {
	if len(text) > LongestNote || !utf8.ValidString(text) {
		return nil
	}
	return &text
}

func unnamed(cause error) error {
	return status.WrapError(codes.Internal, "the driver answered without a response", cause)
}

// remove deletes the instance. If the driver looks elsewhere than where the instance has to be, it must
// find the instance there first, and that has to be recorded: later, it will not be found.
func (e *Engine) remove(ctx context.Context, req Request) Answer {
	p, err := e.locate(ctx, req)
	switch {
	case err != nil:
		return failed(MethodStatus, err)
	case !p.elsewhere():
		return e.delete(ctx, req)
	}
	_, err = e.status(ctx, req)
	switch codeOf(err) {
	case codes.OK, codes.Uninitialized:
		return Answer{State: Located, Location: p.at}
	case codes.NotFound, codes.Unimplemented:
		return p.failure()
	default:
		return failed(MethodStatus, err)
	}
}

// delete deletes the instance, which is gone only when GetMachineStatus says so.
func (e *Engine) delete(ctx context.Context, req Request) Answer {
	resp, err := e.driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
	var left *string
	if resp != nil {
		left = note(resp.LastKnownState)
	}
	switch codeOf(err) {
	case codes.OK, codes.NotFound:
	case codes.Uninitialized:
		return Answer{State: Remains, LastKnownState: left}
	default:
		answer := failed(MethodDelete, err)
		answer.LastKnownState = left
		return answer
	}
	_, err = e.status(ctx, req)
	switch codeOf(err) {
	case codes.NotFound, codes.Unimplemented:
		return Answer{State: Gone, LastKnownState: left}
	case codes.OK, codes.Uninitialized:
		return Answer{State: Remains, LastKnownState: left}
	default:
		answer := failed(MethodStatus, err)
		answer.LastKnownState = left
		return answer
	}
}

func failed(method Method, err error) Answer {
	return Answer{State: Failed, Failure: &Failure{Method: method, Code: codeOf(err), Err: err}}
}

// codeOf classifies an error. Without a status of the driver it is Unknown, unless the context has
// ended. An error is never OK.
func codeOf(err error) codes.Code {
	if _, ok := status.FromError(err); ok {
		return status.Code(err)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return codes.Unknown
}

// Error returns the method and the driver's error.
func (f *Failure) Error() string { return fmt.Sprintf("%s: %v", f.Method, f.Err) }

// Unwrap returns the driver's error.
func (f *Failure) Unwrap() error { return f.Err }
