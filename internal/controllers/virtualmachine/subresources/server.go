// Package subresources serves the subresources console, log, vnc, screenshot, portforward, reset, pause and migrate of
// VirtualMachines as an aggregated API.
//
// kube-apiserver authenticates users, writes the audit log, and proxies requests to this server with the user's name
// in headers. Clients must therefore present the certificate of that front proxy. The server authorizes each request
// with a SubjectAccessReview before it does anything else for it.
package subresources

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"math"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

const (
	// headerTimeout limits the time of a handshake, and then the time until the header of a request has been
	// received.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a connection may wait for the next request. kube-apiserver closes it earlier.
	idleTimeout = 3 * time.Minute
	// maxAnonymous limits connections whose client has not proved yet that it is kube-apiserver.
	maxAnonymous = 256
)

// Hypervisors connects to the hypervisors of VMs.
type Hypervisors interface {
	// Dial connects to the OOBManagement service of a VM's authoritative hypervisor. The caller must close the
	// connection. The text of an error is shown to users.
	Dial(vm *v1alpha1.VirtualMachine) (*grpc.ClientConn, error)
}

// Options configure a Server. All fields but Log are required.
type Options struct {
	// Config is the configuration of the cluster whose users send requests.
	Config *rest.Config
	// Reader reads VirtualMachines.
	Reader client.Reader
	// Writer writes requests for migrations and pauses.
	Writer client.Writer
	// Hypervisors connects to the hypervisors of the VMs.
	Hypervisors Hypervisors
	// Identity has the certificate of this server, which must be valid for the ServerName of its Service.
	Identity *identity.Credentials
	// Log receives a line for each authorized request.
	Log logr.Logger
}

// Server serves the API. Create one with New.
type Server struct {
	Options
	requests request.RequestInfoFactory
	proxy    *frontProxy
	reviews  reviews
	open     *connlimit.Counter // keyed by kind
}

// New returns a Server. It does not connect to the cluster yet. It returns an error if the configuration is invalid.
func New(opts Options) (*Server, error) {
	if opts.Log.GetSink() == nil {
		opts.Log = logr.Discard()
	}
	clients, err := kubernetes.NewForConfig(opts.Config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for the cluster of the virtual machines: %w", err)
	}
	proxy, err := newFrontProxy(clients)
	if err != nil {
		return nil, err
	}
	return &Server{
		Options: opts, proxy: proxy, reviews: clients.AuthorizationV1().SubjectAccessReviews(),
		open:     connlimit.NewCounter(math.MaxInt, MaxStreams),
		requests: request.RequestInfoFactory{APIPrefixes: sets.NewString("apis")},
	}, nil
}

// Serve serves requests until the context is canceled, and then closes all streams. It closes the listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.proxy.run(ctx) })
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ConnState:         connlimit.KnownHTTP,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          log.New(errorLog{s.Log}, "", 0),
		// Streams hijack their connections, which HTTP/2 does not support.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, GetCertificate: s.Identity.Certificate, NextProtos: []string{"http/1.1"},
			// frontProxy verifies the certificate, because the authority can change. It does so again for each
			// request.
			ClientAuth: tls.RequireAnyClientCert, VerifyConnection: s.proxy.verify,
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	group.Go(func() error {
		if err := server.ServeTLS(connlimit.Listen(listener, maxAnonymous), "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving subresources of virtual machines: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// errorLog logs the messages of net/http.
type errorLog struct{ to logr.Logger }

// Write implements io.Writer.
func (l errorLog) Write(line []byte) (int, error) {
	l.to.V(1).Info(string(line))
	return len(line), nil
}

// handler accepts only requests from the front proxy that the user is allowed to make.
func (s *Server) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := s.proxy.user(r)
		if err != nil {
			writeError(w, err)
			return
		}
		info, err := s.requests.NewRequestInfo(r)
		if err != nil {
			writeError(w, badRequest("cannot parse the request: %v", err))
			return
		}
		if document := discovery(r.Method, info.Path); document != nil {
			writeJSON(w, http.StatusOK, document)
			return
		}
		if err := authorize(r.Context(), s.reviews, who, info); err != nil {
			writeError(w, err)
			return
		}
		if err := s.serve(w, r, who, info); err != nil {
			writeError(w, err)
		}
	})
}
