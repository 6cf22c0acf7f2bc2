package pluginserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/utils/lru"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// maxUnexpected and unexpectedRate limit how many unexpected results a driver may send, in a burst and per
// second. Such results are normal because results of canceled operations arrive late.
const (
	maxUnexpected  = 1000
	unexpectedRate = 10
)

// session is a stream of a driver.
type session struct {
	registration *driverpb.Registration
	operations   chan *operation
	// cancels has capacity for all running operations. It may contain operations that have already completed.
	cancels chan string
	// slots has an element for each operation that the driver has not completed.
	slots      chan struct{}
	unexpected *rate.Limiter
	// placed are cached results of PlaceMachine.
	placed *lru.Cache

	once  sync.Once
	ended chan struct{}
	cause error // set when ended is closed

	mu        sync.Mutex
	running   map[string]*operation
	abandoned int
}

// operation is one call of a driver.
type operation struct {
	message *driverpb.Operation
	class   []byte
	secret  map[string][]byte
	// response receives the result. It is never closed.
	response  chan *driverpb.OperationResult
	abandoned bool
}

func newSession(r *driverpb.Registration) *session {
	limit := int(r.GetMaxOperations())
	if limit == 0 {
		limit = driverpb.DefaultOperations
	}
	return &session{
		registration: r, operations: make(chan *operation), cancels: make(chan string, limit), slots: make(chan struct{}, limit),
		unexpected: rate.NewLimiter(unexpectedRate, maxUnexpected), placed: lru.New(256),
		ended: make(chan struct{}), running: map[string]*operation{},
	}
}

// cut closes the session. Only the first cause is kept.
func (s *session) cut(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.ended)
	})
}

// send sends operations and cancelations until the session is closed, and returns its cause.
func (s *session) send(stream grpc.BidiStreamingServer[driverpb.DriverSide, driverpb.MCMside]) error {
	for {
		var next *driverpb.MCMside
		select {
		case op := <-s.operations:
			next = &driverpb.MCMside{Content: &driverpb.MCMside_Operation{Operation: op.message}}
		case id := <-s.cancels:
			next = &driverpb.MCMside{Content: &driverpb.MCMside_Cancel{Cancel: &driverpb.Cancel{OperationId: id}}}
		case <-s.ended:
			return s.cause
		case <-stream.Context().Done():
			return grpcstatus.FromContextError(stream.Context().Err()).Err()
		}
		if err := stream.Send(next); err != nil {
			return err
		}
	}
}

// call executes an operation.
func (s *session) call(ctx context.Context, op *operation) (*driverpb.OperationResult, error) {
	kind := s.registration.GetKind()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, status.WrapError(codes.DeadlineExceeded, "the deadline expired before the operation began", ctx.Err())
	}
	select {
	case s.slots <- struct{}{}:
	case <-s.ended:
		return nil, disconnected(kind)
	case <-ctx.Done():
		return nil, late(ctx, fmt.Sprintf("the driver %q is busy with %d operations", kind, cap(s.slots)))
	}
	op.message.OperationId, op.response = rand.Text(), make(chan *driverpb.OperationResult, 1)
	op.stamp()
	if deadline, ok := ctx.Deadline(); ok {
		op.message.Timeout = remaining(deadline)
	}
	s.begin(op)
	select {
	case s.operations <- op:
	case <-s.ended:
		return nil, disconnected(kind)
	case <-ctx.Done():
		s.forget(op.message.GetOperationId())
		return nil, late(ctx, fmt.Sprintf("the driver %q does not read its operations", kind))
	}
	select {
	case result := <-op.response:
		return result, mismatch(op.message, result)
	case <-s.ended:
		return nil, disconnected(kind)
	case <-ctx.Done():
		s.abandon(op.message.GetOperationId())
		return nil, late(ctx, fmt.Sprintf("the driver %q has not responded in time", kind))
	}
}

func (s *session) begin(op *operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[op.message.GetOperationId()] = op
}

// forget removes an operation, and reports whether it existed.
func (s *session) forget(id string) (*operation, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, found := s.running[id]
	if !found {
		return nil, false
	}
	delete(s.running, id)
	if op.abandoned {
		s.abandoned--
	}
	<-s.slots
	return op, true
}

// finish delivers a result. It reports whether a call was waiting for it.
func (s *session) finish(result *driverpb.OperationResult) bool {
	op, found := s.forget(result.GetOperationId())
	if !found {
		return false
	}
	op.response <- result
	return true
}

// abandon cancels an operation, which keeps its slot until the driver responds. A driver that does not respond
// to any operation is disconnected.
func (s *session) abandon(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, found := s.running[id]
	if !found || op.abandoned {
		return
	}
	op.abandoned, op.class, op.secret = true, nil, nil
	s.abandoned++
	select {
	case s.cancels <- id:
	default: // the driver sends results but does not read
		s.cut(grpcstatus.Error(grpccodes.ResourceExhausted, "the driver does not read cancelations"))
	}
	if s.abandoned == cap(s.slots) {
		s.cut(grpcstatus.Errorf(grpccodes.ResourceExhausted, "%d operations were canceled, and the driver responded to none", s.abandoned))
	}
}

// find returns an operation that is running and was not canceled.
func (s *session) find(id string) *operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := s.running[id]
	if op == nil || op.abandoned {
		return nil
	}
	return &operation{message: op.message, class: op.class, secret: op.secret}
}

// stamp sets the operation's ID in the references to its class and Secret.
func (o *operation) stamp() {
	id := o.message.GetOperationId()
	if class := o.message.GetMachineClass(); class != nil {
		class.OperationId = id
	}
	if secret := o.message.GetSecret(); secret != nil {
		secret.OperationId = id
	}
}

// mismatch returns an error if the result does not belong to the operation.
func mismatch(op *driverpb.Operation, result *driverpb.OperationResult) error {
	switch {
	case result.GetOperationType() != op.GetOperationType():
		return status.Error(codes.Internal, fmt.Sprintf("the operation is %v, but the driver returned a result of %v", op.GetOperationType(), result.GetOperationType()))
	case result.GetMachineName() != op.GetMachineName():
		return status.Error(codes.Internal, fmt.Sprintf("the operation is for machine %q, but the driver returned a result for %.80q", op.GetMachineName(), result.GetMachineName()))
	}
	return nil
}

func disconnected(kind string) error {
	return status.Error(codes.Unavailable, fmt.Sprintf("the driver %q has disconnected during the operation", kind))
}

// late returns the error of a call whose context expired or was canceled.
func late(ctx context.Context, sentence string) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return status.WrapError(codes.Canceled, "the operation was canceled", ctx.Err())
	}
	return status.Error(codes.Unavailable, sentence)
}
