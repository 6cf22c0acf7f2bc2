package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/millwright-dev/millwright/internal/vm/identity"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Server serves VMController, and CertificateAuthority beside it, over TLS. Add it to the
// manager of its Controller. Make one with NewServer.
type Server struct {
	controller *Controller
	listener   net.Listener
}

var (
	_ manager.Runnable               = &Server{}
	_ manager.LeaderElectionRunnable = &Server{}
)

// NewServer makes a Server that takes over the listener.
func NewServer(c *Controller, listener net.Listener) *Server {
	return &Server{controller: c, listener: listener}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: only the leader decides
// who may run a VM. What others' listeners accept waits.
func (s *Server) NeedLeaderElection() bool { return true }

// Start serves until the context ends. Open run leases end then; hypervisors come back to
// the next leader.
func (s *Server) Start(ctx context.Context) error {
	c := s.controller
	logger := log.FromContext(ctx).WithName("vmcontroller")
	options := append(identity.ForController(c.Authority, c.Clock.Now).ServerOptions(),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTime}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	)
	server := grpc.NewServer(options...)
	vmpb.RegisterVMControllerServer(server, &service{Controller: c})
	identitypb.RegisterCertificateAuthorityServer(server, &identity.Issuer{
		Authority: c.Authority, Resolve: c.resolve, Now: c.Clock.Now, Log: slog.New(logr.ToSlogHandler(logger)),
	})
	forget := context.AfterFunc(ctx, server.Stop)
	defer forget()
	if err := server.Serve(s.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) && ctx.Err() == nil {
		return fmt.Errorf("serving hypervisors on %s: %w", s.listener.Addr(), err)
	}
	return nil
}

// keepaliveTime is how long a connection may be idle until it is looked at, and then how
// long the other end has to answer. A hypervisor whose host vanished is noticed so.
const keepaliveTime = 20 * time.Second
