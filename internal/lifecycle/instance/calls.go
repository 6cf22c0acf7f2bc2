package instance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// ensure creates the instance only if it does not exist and never did.
func (e *Engine) ensure(ctx context.Context, req Request) EnsureResult {
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
		stored := Instance{ProviderID: req.Machine.Spec.ProviderID, NodeName: req.Machine.NodeName(), Addresses: req.Machine.Status.Addresses}
		return complete(MethodStatus, req, Exists{Instance: stored})
	case code != codes.NotFound && code != codes.Unimplemented:
		return failed(MethodStatus, err)
	case p.elsewhere():
		return p.failure()
	case known:
		return Lost{}
	}
	if failure, spent := e.spent(ctx, req); spent {
		return failure
	}
	return e.begin(ctx, req, p)
}

func (e *Engine) find(ctx context.Context, req Request) FindResult {
	p, err := e.locate(ctx, req)
	if err != nil {
		return failed(MethodStatus, err)
	}
	resp, err := e.status(ctx, req)
	switch code := codeOf(err); {
	case code == codes.OK || code == codes.Uninitialized:
		if resp == nil {
			return failed(MethodStatus, noResponse(err))
		}
		exists := Exists{Instance: Instance(*resp), Location: p.unrecorded()}
		exists.Instance.reduce()
		if wrong := exists.Instance.unstorable(); wrong != "" {
			return failed(MethodStatus, status.Error(codes.Internal, wrong))
		}
		return exists
	case code != codes.NotFound && code != codes.Unimplemented:
		return failed(MethodStatus, err)
	case p.elsewhere():
		return p.failure()
	}
	return Gone{}
}

func (e *Engine) status(ctx context.Context, req Request) (*driver.GetMachineStatusResponse, error) {
	return e.driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
}

func found(req Request, resp *driver.GetMachineStatusResponse, err error, p place) EnsureResult {
	if resp == nil {
		return failed(MethodStatus, noResponse(err))
	}
	return complete(MethodStatus, req, Exists{Instance: Instance(*resp), Location: p.unrecorded()})
}

func (e *Engine) create(ctx context.Context, req Request) EnsureResult {
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
	failure := failed(MethodCreate, err)
	if req.Capacity != nil {
		failure.Fallback, failure.sooner = req.Capacity.Asked(code)
	}
	switch {
	case code == codes.OK && resp == nil:
		return failed(MethodCreate, noResponse(err))
	case code == codes.OK, code == codes.Uninitialized && resp != nil:
		req.Secret = secret
		return e.initialize(ctx, req, complete(MethodCreate, req, Exists{
			Created:        true,
			LastKnownState: note(resp.LastKnownState),
			Instance:       Instance{ProviderID: resp.ProviderID, NodeName: resp.NodeName, Addresses: resp.Addresses, FailureDomain: resp.FailureDomain},
		}))
	}
	if resp != nil && resp.LastKnownState != "" {
		failure.LastKnownState = note(resp.LastKnownState)
	}
	if failure.Fallback == FallsBack {
		return e.afterCleanup(ctx, req, failure)
	}
	return failure
}

// initialize initializes a complete instance if the driver supports that.
func (e *Engine) initialize(ctx context.Context, req Request, result EnsureResult) EnsureResult {
	initializer, able := driver.As[driver.Initializer](e.driver)
	exists, complete := result.(Exists)
	if !able || !complete {
		return result
	}
	resp, err := initializer.InitializeMachine(ctx, &driver.InitializeMachineRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
	switch codeOf(err) {
	case codes.OK:
		if resp != nil {
			for _, address := range resp.Addresses { // the new ones or all, depending on the driver
				if !slices.Contains(exists.Instance.Addresses, address) {
					exists.Instance.Addresses = append(exists.Instance.Addresses, address)
				}
			}
			exists.Instance.Addresses = storable(exists.Instance.Addresses)
		}
	case codes.Unimplemented:
	default:
		failure := failed(MethodInitialize, err)
		failure.Uninitialized, failure.LastKnownState = &exists, exists.LastKnownState
		return failure
	}
	return exists
}

// complete checks that the driver returned everything that is required, and nothing that cannot be stored,
// because the API server would then refuse the whole Machine. If the check fails, only LastKnownState is kept.
func complete(method Method, req Request, exists Exists) EnsureResult {
	exists.Instance.reduce()
	wrong := exists.Instance.unstorable()
	switch {
	case exists.Instance.ProviderID == "":
		wrong = "the driver returned no provider ID"
	case wrong == "" && req.NodeExpected && exists.Instance.NodeName == "":
		wrong = "the driver returned no node name, or an invalid one"
	}
	if wrong == "" {
		return exists
	}
	incomplete := failed(method, status.Error(codes.Internal, wrong))
	incomplete.LastKnownState = exists.LastKnownState
	return incomplete
}

// reduce removes values that cannot be stored and that an instance may lack.
func (i *Instance) reduce() {
	i.Addresses = storable(i.Addresses)
	if !isNodeName(i.NodeName) {
		i.NodeName = ""
	}
	if len(i.FailureDomain) > longestDomain || !IsPrintable(i.FailureDomain) {
		i.FailureDomain = ""
	}
}

// unstorable returns which value of an instance the API server cannot store, or an empty string if it can store
// all.
func (i *Instance) unstorable() string {
	if len(i.ProviderID) > longestID || !IsPrintable(i.ProviderID) {
		return "the driver returned a provider ID that cannot be stored"
	}
	return ""
}

// isNodeName reports whether the name of a node can be stored: in a label or, if it is too long for one, elsewhere.
func isNodeName(name string) bool {
	return len(validation.IsValidLabelValue(name)) == 0 || len(validation.IsDNS1123Subdomain(name)) == 0
}

const (
	// longestID is the maximum length of a provider ID, in bytes.
	longestID = 2048
	// longestDomain is the maximum length of the name of a failure domain, in bytes. The limit is Cluster API's.
	longestDomain = 256
	// mostAddresses is how many addresses of an instance are stored, and longestAddress the maximum length of
	// each, in bytes.
	mostAddresses  = 64
	longestAddress = 256
)

// storable returns the addresses that can be stored with a machine.
func storable(addresses []corev1.NodeAddress) []corev1.NodeAddress {
	addresses = slices.DeleteFunc(slices.Clone(addresses), unusable)
	return addresses[:min(len(addresses), mostAddresses)]
}

func unusable(a corev1.NodeAddress) bool {
	text := string(a.Type) + a.Address
	return len(text) > longestAddress || !IsPrintable(text)
}

// IsPrintable reports whether a driver's text is valid UTF-8 in a single line without control characters.
func IsPrintable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// LongestNote is the maximum length of a driver's LastKnownState that is stored, in bytes.
const LongestNote = 64 << 10

// note returns a driver's LastKnownState, or nil if the API server cannot store it unchanged.
func note(text string) *string {
	if len(text) > LongestNote || !utf8.ValidString(text) {
		return nil
	}
	return &text
}

func noResponse(cause error) error {
	return status.WrapError(codes.Internal, "the driver returned no response", cause)
}

// remove deletes the instance. If the driver looks for it in another place than the recorded one, the driver
// must find it there and the new place must be recorded before the deletion, because the instance can no longer
// be found afterwards.
func (e *Engine) remove(ctx context.Context, req Request) DeleteResult {
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
		return Located{Location: p.at}
	case codes.NotFound, codes.Unimplemented:
		return p.failure()
	default:
		return failed(MethodStatus, err)
	}
}

// delete deletes the instance. It is gone only when GetMachineStatus reports that.
func (e *Engine) delete(ctx context.Context, req Request) DeleteResult {
	resp, err := e.driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret})
	var left *string
	if resp != nil {
		left = note(resp.LastKnownState)
	}
	switch codeOf(err) {
	case codes.OK, codes.NotFound:
	case codes.Uninitialized:
		return Remains{LastKnownState: left}
	default:
		failure := failed(MethodDelete, err)
		failure.LastKnownState = left
		return failure
	}
	_, err = e.status(ctx, req)
	switch codeOf(err) {
	case codes.NotFound, codes.Unimplemented:
		return Gone{LastKnownState: left}
	case codes.OK, codes.Uninitialized:
		return Remains{LastKnownState: left}
	default:
		failure := failed(MethodStatus, err)
		failure.LastKnownState = left
		return failure
	}
}

// codeOf returns the code of an error. An error without a driver status has the code Unknown, unless the
// context expired or was canceled. The code of an error is never OK.
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
