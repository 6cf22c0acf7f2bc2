package pluginserver

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// Messages of a caller use memory while they are received. window limits the part of a stream that is received
// before it is read. maxArrivals limits how many registrations and requests of a caller are received
// concurrently; each may have the maximum message length. arrivalTimeout limits the time for each of them.
const (
	window         = 64 << 10
	maxStreams     = 32
	maxArrivals    = 4
	arrivalTimeout = 10 * time.Second
)

// service is driverpb.Infra_ServiceDesc with requests as streams, because gRPC would otherwise receive a
// request before it calls the handler.
func (s *Server) service() *grpc.ServiceDesc {
	desc := driverpb.Infra_ServiceDesc
	desc.Methods = nil
	desc.Streams = append(slices.Clone(desc.Streams),
		grpc.StreamDesc{StreamName: "GetMachineClass", ServerStreams: true, Handler: unary(s, s.GetMachineClass)},
		grpc.StreamDesc{StreamName: "GetSecret", ServerStreams: true, Handler: unary(s, s.GetSecret)},
	)
	return &desc
}

// unary returns the handler of a method with one request and one response.
func unary[Request, Response any](s *Server, method func(context.Context, *Request) (*Response, error)) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		request, err := arrived(s, stream, func() (*Request, error) {
			next := new(Request)
			return next, stream.RecvMsg(next)
		})
		if err != nil {
			return err
		}
		response, err := method(stream.Context(), request)
		if err != nil {
			return err
		}
		return stream.SendMsg(response)
	}
}

// arrived receives the first message of a stream once the caller has a free place for it. After an error, the
// stream must be closed.
func arrived[Message any](s *Server, stream grpc.ServerStream, receive func() (Message, error)) (message Message, err error) {
	timer := time.NewTimer(arrivalTimeout)
	defer timer.Stop()
	late := status.Errorf(codes.DeadlineExceeded, "no request or registration within %v", arrivalTimeout)
	places := s.placesOf(stream.Context())
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-timer.C:
		return message, late
	case <-stream.Context().Done():
		return message, status.FromContextError(stream.Context().Err()).Err()
	}
	type result struct {
		message Message
		err     error
	}
	received := make(chan result, 1)
	go func() {
		message, err := receive()
		received <- result{message, err}
	}()
	select {
	case got := <-received:
		if errors.Is(got.err, io.EOF) {
			got.err = status.Error(codes.InvalidArgument, "the stream has no message")
		}
		return got.message, got.err
	case <-timer.C:
		return message, late
	}
}

// placesOf returns the channel that has an element for each message of a caller that is being received.
func (s *Server) placesOf(ctx context.Context) chan struct{} {
	name := callerOf(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	places := s.arriving[name]
	if places == nil {
		places = make(chan struct{}, maxArrivals)
		s.arriving[name] = places
	}
	return places
}

// callerOf returns the names in a caller's certificate. Callers without a certificate belong to the same user
// or host and share one name.
func callerOf(ctx context.Context) string {
	caller, _ := peer.FromContext(ctx)
	if caller == nil {
		return ""
	}
	secured, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok || len(secured.State.PeerCertificates) == 0 {
		return ""
	}
	leaf := secured.State.PeerCertificates[0]
	return strings.Join(append([]string{leaf.Subject.CommonName}, leaf.DNSNames...), " ")
}
