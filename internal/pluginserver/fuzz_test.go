package pluginserver

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// FuzzServer_Registration checks that any registration is either rejected with a reason or within the limits.
func FuzzServer_Registration(f *testing.F) {
	good := &driverpb.Registration{Kind: "fake", ApiVersion: v1alpha1.SchemeGroupVersion.String(), Instance: "0123456789abcdef", Operations: required}
	for _, message := range []*driverpb.DriverSide{
		{}, {Content: &driverpb.DriverSide_Registration{Registration: good}},
		{Content: &driverpb.DriverSide_Result{Result: &driverpb.OperationResult{OperationId: "x"}}},
	} {
		encoded, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	s := New(Options{})
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.UnixAddr{}})
	f.Fuzz(func(t *testing.T, frame []byte) {
		message := &driverpb.DriverSide{}
		if proto.Unmarshal(frame, message) != nil {
			return // gRPC closes the stream
		}
		r := message.GetRegistration()
		if err := s.check(ctx, r); err != nil {
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.FailedPrecondition {
				t.Errorf("rejected with %v", err)
			}
			return
		}
		if r.GetKind() == "" || registry.CheckName(r.GetKind()) != nil || len(r.GetInstance()) > driverpb.MaxInstance || len(r.GetVersion()) > driverpb.MaxVersion {
			t.Errorf("accepted: %v", r)
		}
		if limit := cap(newSession(r).slots); limit < 1 || limit > driverpb.MaxOperations {
			t.Errorf("accepted with %d operations", limit)
		}
	})
}

// script feeds a session. Each byte of the script selects the next action.
type script struct {
	*testing.T
	*session
	server *Server
	rest   []byte
	begun  []*operation
	// finished contains operations that have ended.
	finished map[*operation]bool
}

func (s *script) next() int {
	if len(s.rest) == 0 {
		return 0
	}
	first := s.rest[0]
	s.rest = s.rest[1:]
	return int(first)
}

// call begins an operation for one of four machines if a slot is free.
func (s *script) call() {
	select {
	case s.slots <- struct{}{}:
	default:
		return
	}
	id := string(rune('a' + len(s.begun)))
	op := &operation{response: make(chan *driverpb.OperationResult, 1), message: &driverpb.Operation{
		OperationId: id, OperationType: driverpb.OperationType(1 + s.next()%4), MachineName: string(rune('0' + s.next()%4)),
	}}
	s.begun = append(s.begun, op)
	s.begin(op)
}

// frame receives bytes as if sent by the driver.
func (s *script) frame() {
	length := min(s.next(), len(s.rest))
	content := &driverpb.DriverSide{}
	if proto.Unmarshal(s.rest[:length], content) == nil {
		_ = s.server.take(s.session, content)
	}
	s.rest = s.rest[length:]
}

// response receives the result of an operation, which may have ended, or names another machine.
func (s *script) response() {
	if len(s.begun) == 0 {
		return
	}
	asked := s.begun[s.next()%len(s.begun)].message
	result := &driverpb.OperationResult{OperationId: asked.GetOperationId(), OperationType: asked.GetOperationType(), MachineName: asked.GetMachineName()}
	switch s.next() % 4 {
	case 0:
		result.MachineName = string(rune('0' + s.next()%4))
	case 1:
		result.OperationType = driverpb.OperationType(s.next())
	case 2:
		result.Code, result.Message = uint32(s.next())<<24|uint32(s.next()), string(s.rest)
	}
	_ = s.server.take(s.session, &driverpb.DriverSide{Content: &driverpb.DriverSide_Result{Result: result}})
}

// check checks that each operation gets at most one result, that a result for another machine is an error, and
// that no operation loses its slot.
func (s *script) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.slots) != len(s.running) {
		s.Fatalf("%d operations have %d slots", len(s.running), len(s.slots))
	}
	if s.abandoned < 0 || s.abandoned > len(s.running) {
		s.Fatalf("%d of %d operations are cancelled", s.abandoned, len(s.running))
	}
	for _, op := range s.begun {
		select {
		case result := <-op.response:
			if s.finished[op] {
				s.Fatalf("%v has two results", op.message)
			}
			s.finished[op] = true
			fits := result.GetMachineName() == op.message.GetMachineName() && result.GetOperationType() == op.message.GetOperationType()
			if (mismatch(op.message, result) == nil) != fits {
				s.Fatalf("wrong match of result %v with operation %v", result, op.message)
			}
			if err := failureOf(result); (err == nil) != (result.GetCode() == 0) {
				s.Fatalf("%v became %v", result, err)
			}
		default:
		}
	}
}

// FuzzResult sends garbage, duplicate results, results for other machines, and results for operations that do
// not exist or were canceled.
func FuzzResult(f *testing.F) {
	unknown, err := proto.Marshal(&driverpb.DriverSide{Content: &driverpb.DriverSide_Result{Result: &driverpb.OperationResult{OperationId: "z"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{0, 0, 1, 2, 0, 3})                          // a call and its result
	f.Add([]byte{0, 0, 1, 2, 0, 3, 2, 0, 3})                 // a duplicate
	f.Add([]byte{0, 0, 1, 2, 0, 0, 2})                       // for another machine
	f.Add([]byte{0, 0, 1, 3, 0, 2, 0, 3, 0, 0, 1})           // canceled, with a late result
	f.Add(append([]byte{1, byte(len(unknown))}, unknown...)) // unknown
	f.Add([]byte{1, 4, 0xff, 0xff, 0xff, 0xff})              // garbage
	server := New(Options{})
	f.Fuzz(func(t *testing.T, steps []byte) {
		s := &script{T: t, session: newSession(&driverpb.Registration{Kind: "fake", MaxOperations: 3}), server: server, rest: steps, finished: map[*operation]bool{}}
		for len(s.rest) > 0 {
			switch s.next() % 4 {
			case 0:
				s.call()
			case 1:
				s.frame()
			case 2:
				s.response()
			case 3:
				if len(s.begun) > 0 {
					s.abandon(s.begun[s.next()%len(s.begun)].message.GetOperationId())
				}
			}
			s.check()
		}
	})
}
