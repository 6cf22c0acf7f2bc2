// Package pluginserver lets drivers in other processes register with a machine manager.
//
// Each kind of driver that registers becomes a [Driver], which the manager uses like a compiled-in one. The
// Driver remains when the other process exits. Until that process registers again, every call returns
// Unavailable, so that nothing is considered deleted. Package driver/plugin implements the client. The file
// proto/driver/driver.proto describes the protocol.
package pluginserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/tracing"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// Options configure a [Server].
type Options struct {
	// Add is called when the first driver of a kind registers, before any of its operations. If it returns an
	// error, the registration is refused with ALREADY_EXISTS. Add is called again at the next attempt. Required.
	Add func(kind string, d *Driver) error
	// Returned is called when a driver of a known kind has registered again. It must not block. Optional.
	Returned func(kind string)
	// Version is the version of the manager, which drivers log. Optional.
	Version string
	// Log is the logger for registrations. The zero value discards all lines.
	Log logr.Logger
	// Registerer registers the metrics. If nil, there are no metrics.
	Registerer prometheus.Registerer
}

// maxKinds is the maximum number of kinds of drivers.
const maxKinds = 64

// Server is the manager's side of the protocol. Create one with [New].
type Server struct {
	driverpb.UnimplementedInfraServer
	options Options
	metrics *metrics
	// key is the key for the versions of classes and Secrets. Because it cannot be guessed, versions reveal
	// nothing about the content.
	key [32]byte

	mu    sync.Mutex
	kinds map[string]*Driver // by lower-case kind
	// arriving has, for each caller, the places for messages that are being received.
	arriving map[string]chan struct{}
}

// New returns a server without endpoints.
func New(options Options) *Server {
	if options.Log.GetSink() == nil {
		options.Log = logr.Discard()
	}
	s := &Server{options: options, metrics: newMetrics(options.Registerer), kinds: map[string]*Driver{}, arriving: map[string]chan struct{}{}}
	_, _ = rand.Read(s.key[:]) // never fails
	return s
}

// Serve serves drivers at the endpoint until the context is canceled. It closes the endpoint.
func (s *Server) Serve(ctx context.Context, endpoint *Endpoint) error {
	server := grpc.NewServer(slices.Concat(serverOptions(), tracing.ServerOptions(), []grpc.ServerOption{grpc.Creds(newLogged(endpoint.credentials, s.options.Log))})...)
	server.RegisterService(s.service(), s)
	forget := context.AfterFunc(ctx, server.Stop)
	defer forget()
	s.options.Log.Info("Drivers may register", "endpoint", endpoint.String())
	err := server.Serve(endpoint.listener)
	if err != nil && ctx.Err() == nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving drivers at %s: %w", endpoint, err)
	}
	return nil
}

func serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(connlimit.HandshakeTimeout),
		grpc.MaxRecvMsgSize(driverpb.MaxMessage),
		connlimit.Messages(driverpb.MaxFields),
		grpc.MaxHeaderListSize(driverpb.MaxHeaders),
		// One stream is for the registration, and the others are short. If there are too many, callers wait.
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(16 * window),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: driverpb.KeepaliveTime, Timeout: driverpb.KeepaliveTime, MaxConnectionIdle: time.Minute,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: driverpb.KeepaliveTime / 2, PermitWithoutStream: true}),
	}
}

// Register implements driverpb.InfraServer.
func (s *Server) Register(stream grpc.BidiStreamingServer[driverpb.DriverSide, driverpb.MCMside]) error {
	first, err := arrived(s, stream, stream.Recv)
	if err != nil {
		return err
	}
	registration := first.GetRegistration()
	if registration == nil {
		return status.Error(codes.InvalidArgument, "the first message has no registration")
	}
	if err := s.check(stream.Context(), registration); err != nil {
		s.options.Log.Info("Refused a driver", "kind", registration.GetKind(), "reason", status.Convert(err).Message())
		return err
	}
	current := newSession(registration)
	d, err := s.open(current)
	if err != nil {
		s.options.Log.Info("Refused a driver", "kind", registration.GetKind(), "reason", status.Convert(err).Message())
		return err
	}
	log := s.options.Log.WithValues("kind", d.kind, "version", registration.GetVersion())
	log.Info("A driver has registered")
	err = s.talk(stream, current, receive(stream))
	s.close(d, current, err)
	log.Info("A driver has disconnected", "reason", status.Convert(err).Message())
	return err
}

// talk runs a registered stream until it is closed.
func (s *Server) talk(stream grpc.BidiStreamingServer[driverpb.DriverSide, driverpb.MCMside], current *session, received <-chan message) error {
	hello := &driverpb.Registered{Version: s.options.Version, MaxMessageBytes: driverpb.MaxMessage}
	if err := stream.Send(&driverpb.MCMside{Content: &driverpb.MCMside_Registered{Registered: hello}}); err != nil {
		return err
	}
	// Results must be read even while the driver does not read.
	go func() {
		for next := range received {
			err := next.err
			if err == nil {
				err = s.take(current, next.content)
			}
			if err != nil {
				current.cut(err)
				return
			}
		}
	}()
	// If the driver does not read, send blocks. It returns when this function returns.
	go func() { current.cut(current.send(stream)) }()
	select {
	case <-current.ended:
		return current.cause
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
}

// take processes a message that follows the registration.
func (s *Server) take(current *session, content *driverpb.DriverSide) error {
	result := content.GetResult()
	if result == nil {
		return status.Error(codes.InvalidArgument, "a message after the registration must contain the result of an operation")
	}
	if current.finish(result) {
		return nil
	}
	s.metrics.ignored(current.registration.GetKind())
	s.options.Log.V(1).Info("Ignored a result because its operation is not running", "kind", current.registration.GetKind())
	if !current.unexpected.Allow() {
		return status.Error(codes.ResourceExhausted, "too many results for unknown operations")
	}
	return nil
}

// open makes a session the current one of its kind.
func (s *Server) open(current *session) (*Driver, error) {
	kind := current.registration.GetKind()
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.kinds[strings.ToLower(kind)]
	isNew := d == nil
	if isNew {
		if len(s.kinds) >= maxKinds {
			return nil, status.Errorf(codes.ResourceExhausted, "drivers of %d kinds are already registered", maxKinds)
		}
		d = newDriver(kind, s.key[:])
	}
	if err := d.enter(current); err != nil {
		return nil, err
	}
	if isNew {
		if err := s.options.Add(kind, d); err != nil {
			return nil, status.Errorf(codes.AlreadyExists, "cannot serve kind %q: %v", kind, err)
		}
		s.kinds[strings.ToLower(kind)] = d
	} else if s.options.Returned != nil {
		s.options.Returned(d.kind)
	}
	s.metrics.connected(d.kind, true)
	return d, nil
}

// close closes a session of a kind. The kind may already have another session.
func (s *Server) close(d *Driver, gone *session, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.leave(gone, cause)
	s.metrics.connected(d.kind, d.connected())
}

// message is a received message, or the error that ended the stream.
type message struct {
	content *driverpb.DriverSide
	err     error
}

// receive reads a stream until it is closed, which happens when its handler returns.
func receive(stream grpc.BidiStreamingServer[driverpb.DriverSide, driverpb.MCMside]) <-chan message {
	received := make(chan message)
	go func() {
		defer close(received)
		for {
			content, err := stream.Recv()
			select {
			case received <- message{content, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return received
}
