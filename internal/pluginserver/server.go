// Package pluginserver lets drivers in other processes register at a machine manager.
//
// Each kind of driver that registers becomes a [Driver], which the manager uses like one that is
// compiled in. It stays when the other process exits: until that registers again, every call
// returns Unavailable, so that nothing is taken for deleted. Package driver/plugin is the other end;
// proto/driver/driver.proto describes the protocol.
package pluginserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// Options configure a [Server].
type Options struct {
	// Add is called when the first driver of a kind registers, before any of its operations. An
	// error refuses it, with ALREADY_EXISTS; it is asked again at the next try. Required.
	Add func(kind string, d *Driver) error
	// Returned is called when a driver of a kind that was added has registered again. It must not block.
	// Optional.
	Returned func(kind string)
	// Version of the manager, which drivers log. Optional.
	Version string
	// Log of registrations. The zero value discards.
	Log logr.Logger
	// Registerer registers the metrics. Nil means none.
	Registerer prometheus.Registerer
}

// maxKinds is how many kinds of drivers a server knows.
const maxKinds = 64

// setupTimeout is how long a connection may take to be set up.
const setupTimeout = 10 * time.Second

// Server is the manager's end of the protocol. Make one with [New].
type Server struct {
	driverpb.UnimplementedInfraServer
	options Options
	metrics *metrics
	// key of the versions of classes and Secrets. It is not guessable, so that versions say nothing
	// of what they are of.
	key [32]byte

	mu    sync.Mutex
	kinds map[string]*Driver // by kind in lower case
	// arriving has the places of each caller for messages that are being received.
	arriving map[string]chan struct{}
}

// New returns a server that serves nowhere yet.
func New(options Options) *Server {
	if options.Log.GetSink() == nil {
		options.Log = logr.Discard()
	}
	s := &Server{options: options, metrics: newMetrics(options.Registerer), kinds: map[string]*Driver{}, arriving: map[string]chan struct{}{}}
	_, _ = rand.Read(s.key[:]) // never fails
	return s
}

// Serve serves drivers at the endpoint until the context ends. It closes the endpoint.
func (s *Server) Serve(ctx context.Context, endpoint *Endpoint) error {
	server := grpc.NewServer(append(serverOptions(), grpc.Creds(newLogged(endpoint.credentials, s.options.Log)))...)
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
		grpc.ConnectionTimeout(setupTimeout),
		grpc.MaxRecvMsgSize(driverpb.MaxMessage),
		grpc.MaxHeaderListSize(driverpb.MaxHeaders),
		// One for the registration; others are short. Callers wait for one.
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

// talk runs a registered stream until it ends.
func (s *Server) talk(stream grpc.BidiStreamingServer[driverpb.DriverSide, driverpb.MCMside], current *session, received <-chan message) error {
	hello := &driverpb.Registered{Version: s.options.Version, MaxMessageBytes: driverpb.MaxMessage}
	if err := stream.Send(&driverpb.MCMside{Content: &driverpb.MCMside_Registered{Registered: hello}}); err != nil {
		return err
	}
	// Results must be read also while the driver does not read what is sent.
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
	// A driver that reads nothing holds up what sends. It ends when this function returns.
	go func() { current.cut(current.send(stream)) }()
	select {
	case <-current.ended:
		return current.cause
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
}

// take takes a message that follows the registration.
func (s *Server) take(current *session, content *driverpb.DriverSide) error {
	result := content.GetResult()
	if result == nil {
		return status.Error(codes.InvalidArgument, "a message after the registration has no result of an operation")
	}
	if current.finish(result) {
		return nil
	}
	s.metrics.ignored(current.registration.GetKind())
	s.options.Log.V(1).Info("Ignored a result, since no such operation is running", "kind", current.registration.GetKind())
	if !current.unexpected.Allow() {
		return status.Error(codes.ResourceExhausted, "too many results of operations that do not exist")
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
			return nil, status.Errorf(codes.ResourceExhausted, "there are drivers of %d kinds already", maxKinds)
		}
		d = newDriver(kind, s.key[:])
	}
	if err := d.enter(current); err != nil {
		return nil, err
	}
	if isNew {
		if err := s.options.Add(kind, d); err != nil {
			return nil, status.Errorf(codes.AlreadyExists, "the kind %q cannot be served: %v", kind, err)
		}
		s.kinds[strings.ToLower(kind)] = d
	} else if s.options.Returned != nil {
		s.options.Returned(d.kind)
	}
	s.metrics.connected(d.kind, true)
	return d, nil
}

// close ends a session of a kind, which may have another one by then.
func (s *Server) close(d *Driver, gone *session, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.leave(gone, cause)
	s.metrics.connected(d.kind, d.connected())
}

// message is what was received, or why nothing more will be.
type message struct {
	content *driverpb.DriverSide
	err     error
}

// receive reads a stream until it ends, which it does when its handler returns.
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
