package service

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

// keepaliveTime is how long a connection may be idle before it is probed, and then how
// long the other end has to answer. It finds hypervisors whose host is gone.
const keepaliveTime = 20 * time.Second

// Server serves a Service over TLS. Add it to the manager of the controller.
type Server struct {
	// Service to serve.
	Service *Service
	// Listener to serve on. Start closes it.
	Listener net.Listener
}

var (
	_ manager.Runnable               = &Server{}
	_ manager.LeaderElectionRunnable = &Server{}
)

// NeedLeaderElection implements manager.LeaderElectionRunnable: only the leader decides
// who may run a VM. Connections to other processes wait.
func (s *Server) NeedLeaderElection() bool { return true }

// Start serves until the context ends. Open run leases end then; hypervisors come back to
// the next leader.
func (s *Server) Start(ctx context.Context) error {
	authority, registry := s.Service.Authority, s.Service.Registry
	logger := log.FromContext(ctx).WithName("vmcontroller")
	options := append(identity.ForController(authority, registry.Clock.Now).ServerOptions(),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTime}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	)
	tokens := TokenReviewer{Client: registry.Client, APIReader: registry.APIReader}
	server := grpc.NewServer(options...)
	vmpb.RegisterVMControllerServer(server, s.Service)
	identitypb.RegisterCertificateAuthorityServer(server, &identity.Issuer{
		Authority: authority, Resolve: tokens.Resolve, Now: registry.Clock.Now, Log: slog.New(logr.ToSlogHandler(logger)),
	})
	forget := context.AfterFunc(ctx, server.Stop)
	defer forget()
	if err := server.Serve(s.Listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) && ctx.Err() == nil {
		return fmt.Errorf("serving hypervisors on %s: %w", s.Listener.Addr(), err)
	}
	return nil
}
