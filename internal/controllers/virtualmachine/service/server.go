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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
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
	// Refuse clients without a certificate first, so that their calls do not count toward the limits.
	options := append(s.Service.credentials().ServerOptions(bounds.admit), bounds.serverOptions()...)
	server := grpc.NewServer(options...)
	vmpb.RegisterVMControllerServer(server, s.Service)
	if s.Service.Identity == nil {
		tokens := TokenReviewer{Client: registry.Client, APIReader: registry.APIReader, Signer: podstate.Signer{MAC: s.Service.Authority.MAC}}
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

// AuthoritySecret is the name of the Secret that holds the certificate authority.
const AuthoritySecret = podspec.AuthoritySecret

// LoadAuthority reads the certificate authority from its Secret. If the Secret does not exist, LoadAuthority creates
// it in the namespace, which must exist. Concurrent processes get the same authority. The client must read from the
// API server.
//
// LoadAuthority does not replace a malformed Secret, because running hypervisors trust its certificate. It then
// returns identity.ErrBadAuthority.
func LoadAuthority(ctx context.Context, c client.Client, namespace string) (*identity.Authority, error) {
	key := client.ObjectKey{Namespace: namespace, Name: AuthoritySecret}
	secret := &corev1.Secret{}
	err := c.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		secret, err = createAuthority(ctx, c, key)
	}
	var authority *identity.Authority
	if err == nil {
		authority, err = identity.ParseAuthority(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	}
	if err != nil {
		return nil, fmt.Errorf("cannot load the VM certificate authority from secret %s: %w", key, err)
	}
	return authority, nil
}

// createAuthority creates the Secret, or reads the one that another process has created.
func createAuthority(ctx context.Context, c client.Client, key client.ObjectKey) (*corev1.Secret, error) {
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		return nil, err
	}
	certificate, private := authority.PEM()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: private},
	}
	err = c.Create(ctx, secret)
	if apierror.Taken(err) {
		return secret, c.Get(ctx, key, secret)
	}
	return secret, err
}
