package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// session is one registration.
type session struct {
	driver       driver.Driver
	options      Options
	registration *driverpb.Registration
	// all counts the operations of all sessions: an operation that ignores its context outlives its session.
	all *sync.WaitGroup

	registered bool
	cache      *cache
	results    chan *driverpb.OperationResult
	// over is closed when the stream is closed.
	over <-chan struct{}

	mu      sync.Mutex
	running map[string]context.CancelFunc
}

// run registers the driver and executes operations until the stream is closed.
func (s *session) run(ctx context.Context) error {
	conn, err := s.options.dial()
	if err != nil {
		return grpcstatus.Error(grpccodes.InvalidArgument, err.Error())
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also cancels all operations
	client := driverpb.NewInfraClient(conn)
	stream, err := client.Register(ctx)
	if err != nil {
		return err
	}
	if err := s.register(ctx, stream); err != nil {
		return err
	}
	s.cache, s.running = newCache(client), map[string]context.CancelFunc{}
	s.results, s.over = make(chan *driverpb.OperationResult), ctx.Done()
	go func() {
		defer cancel()
		s.send(ctx, stream)
	}()
	for {
		next, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		switch content := next.GetContent().(type) {
		case *driverpb.MCMside_Operation:
			s.begin(ctx, content.Operation)
		case *driverpb.MCMside_Cancel:
			s.cancel(content.Cancel.GetOperationId())
		}
	}
}

func (s *session) register(ctx context.Context, stream grpc.BidiStreamingClient[driverpb.DriverSide, driverpb.MCMside]) error {
	hello := &driverpb.DriverSide{Content: &driverpb.DriverSide_Registration{Registration: s.registration}}
	if err := stream.Send(hello); err != nil && !errors.Is(err, io.EOF) { // after EOF, Recv returns the cause
		return err
	}
	response, err := stream.Recv()
	if err != nil {
		return ended(err)
	}
	if response.GetRegistered() == nil {
		return grpcstatus.Error(grpccodes.Unavailable, "the manager sent an unexpected response to the registration")
	}
	s.registered = true
	s.options.Connected(true)
	logr.FromContextOrDiscard(ctx).Info("Registered with the manager", "target", s.options.Target, "kind", s.options.Kind, "managerVersion", response.GetRegistered().GetVersion())
	return nil
}

// send sends results until the context is done or the stream is broken.
func (s *session) send(ctx context.Context, stream grpc.BidiStreamingClient[driverpb.DriverSide, driverpb.MCMside]) {
	for {
		select {
		case result := <-s.results:
			if stream.Send(&driverpb.DriverSide{Content: &driverpb.DriverSide_Result{Result: result}}) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return grpcstatus.Error(grpccodes.Unavailable, "the manager closed the stream")
	}
	return err
}

// begin starts an operation. It ignores a duplicate of a running operation.
func (s *session) begin(ctx context.Context, op *driverpb.Operation) {
	var cancel context.CancelFunc
	if op.GetTimeout() != nil {
		ctx, cancel = context.WithTimeout(ctx, op.GetTimeout().AsDuration())
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.running[op.GetOperationId()]; twice {
		cancel()
		return
	}
	busy := len(s.running) >= s.options.limit()
	s.running[op.GetOperationId()] = cancel
	s.all.Go(func() {
		result := &driverpb.OperationResult{}
		if busy { // the manager should not have sent the operation
			fail(result, status.Error(codes.Unavailable, "the driver is busy: the manager sent more operations than the registered maximum"))
		} else {
			result = s.perform(ctx, op)
		}
		result.OperationId, result.OperationType, result.MachineName = op.GetOperationId(), op.GetOperationType(), op.GetMachineName()
		s.end(op.GetOperationId()) // before the manager may send another operation
		s.deliver(result)
	})
}

// deliver sends a result, including that of a canceled operation. After the session has ended, the result is
// dropped.
func (s *session) deliver(result *driverpb.OperationResult) {
	encoded, err := proto.Marshal(result)
	if err == nil && len(encoded) > driverpb.MaxMessage {
		err = fmt.Errorf("it has %d bytes, but the maximum is %d", len(encoded), driverpb.MaxMessage)
	}
	if err != nil {
		result = &driverpb.OperationResult{OperationId: result.GetOperationId(), OperationType: result.GetOperationType(), MachineName: result.GetMachineName()}
		fail(result, status.WrapError(codes.Internal, "cannot send the driver's response: "+err.Error(), err))
	}
	select {
	case s.results <- result:
	case <-s.over:
	}
}

func (s *session) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[id]()
	delete(s.running, id)
}

func (s *session) cancel(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel, found := s.running[id]; found {
		cancel()
	}
}

// perform executes an operation. A panic fails only this operation.
func (s *session) perform(ctx context.Context, op *driverpb.Operation) (result *driverpb.OperationResult) {
	result = &driverpb.OperationResult{}
	defer func() {
		if cause := recover(); cause != nil {
			result = &driverpb.OperationResult{}
			logr.FromContextOrDiscard(ctx).Error(nil, "The driver panicked", "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
			fail(result, status.Error(codes.Internal, fmt.Sprintf("the driver panicked: %v", cause)))
		}
	}()
	do, known := methods[op.GetOperationType()]
	if !known {
		fail(result, status.Error(codes.Unimplemented, fmt.Sprintf("the driver does not support operation %v", op.GetOperationType())))
		return result
	}
	request, err := s.read(ctx, op)
	if err == nil {
		err = do(ctx, s.driver, request, result)
	}
	fail(result, coded(ctx, err))
	return result
}

// coded adds a code to an error that has none and was caused by its context.
func coded(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	switch _, has := status.FromError(err); {
	case has:
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return status.WrapError(codes.DeadlineExceeded, err.Error(), err)
	case errors.Is(err, context.Canceled):
		return status.WrapError(codes.Canceled, err.Error(), err)
	}
	return err
}
