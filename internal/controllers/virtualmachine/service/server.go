package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/tracing"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	overlaypb "github.com/millwright-dev/millwright/proto/overlay"
)

// Server serves a Service over TLS. Add it to the manager of the controller.
type Server struct {
	// Service is the service to serve.
	Service *Service
	// Listener is the listener to serve on. Start closes it.
	Listener net.Listener
}

// NeedLeaderElection implements manager.LeaderElectionRunnable. Only the leader decides which hypervisor may run a
// VM. Connections to other replicas wait.
func (s *Server) NeedLeaderElection() bool { return true }

// Start serves until the context is canceled. It then closes all open run leases, and the hypervisors connect to the
// next leader.
func (s *Server) Start(ctx context.Context) error {
	registry := s.Service.Registry
	logger := log.FromContext(ctx).WithName("vmcontroller")
	bounds := newLimits(registry.Clock)
	bounds.renewals = registry.RenewalLimit
	// Refuse clients without a certificate first, so that their calls do not count toward the limits.
	options := slices.Concat(s.Service.credentials().ServerOptions(bounds.admit), bounds.serverOptions(), tracing.ServerOptions())
	server := grpc.NewServer(options...)
	vmpb.RegisterVMControllerServer(server, s.Service)
	if s.Service.overlays != nil {
		overlaypb.RegisterOverlayServer(server, s.Service.overlays)
	}
	if s.Service.Identity == nil {
		tokens := TokenReviewer{
			Client: registry.Client, APIReader: registry.APIReader, Signer: podstate.Signer{MAC: s.Service.Authority.MAC}, Admit: bounds.admitReview,
		}
		identitypb.RegisterCertificateAuthorityServer(server, &identity.Issuer{
			Authority: s.Service.Authority, Resolve: tokens.Resolve, Now: registry.Clock.Now, Log: slog.New(logr.ToSlogHandler(logger)),
		})
	}
	forget := context.AfterFunc(ctx, server.Stop)
	defer forget()
	if err := server.Serve(bounds.listen(s.Listener)); err != nil && !errors.Is(err, grpc.ErrServerStopped) && ctx.Err() == nil {
		return fmt.Errorf("serving hypervisors on %s: %w", s.Listener.Addr(), err)
	}
	return nil
}
