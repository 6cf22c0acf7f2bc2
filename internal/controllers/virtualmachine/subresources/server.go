// Package subresources serves console, log, reset and migrate of VirtualMachines as an aggregated API.
//
// kube-apiserver authenticates users, records the audit, and proxies their requests to here with the
// user's name in headers. Whoever comes here must therefore have the certificate of that front proxy.
// Each request is authorized by a SubjectAccessReview before anything else is done for it.
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
	// headerLimit is how long a client may take for the handshake, and then to send the header of a request.
	headerLimit = 10 * time.Second
	// idleLimit is how long a connection may wait for the next request. kube-apiserver closes it before.
	idleLimit = 3 * time.Minute
	// maxAnonymous and maxAnonymousPerAddress bound connections whose client has not shown that it is
	// kube-apiserver.
	maxAnonymous           = 256
	maxAnonymousPerAddress = 64
)

// Hypervisors connects to the processes that run virtual machines.
type Hypervisors interface {
	// Dial connects to the OOBManagement service of the authoritative hypervisor of a VM. The caller closes
	// the connection. Errors are for users.
	Dial(vm *v1alpha1.VirtualMachine) (*grpc.ClientConn, error)
}

// Options configure a Server. All fields but Log are required.
type Options struct {
	// Config of the cluster whose users call.
	Config *rest.Config
	// Reader reads VirtualMachines.
	Reader client.Reader
	// Writer orders migrations.
	Writer client.Writer
	// Hypervisors runs the VMs.
	Hypervisors Hypervisors
	// Identity has the certificate of this server, for the ServerName of its Service.
	Identity *identity.Credentials
	// Log gets a line for each request that was carried out.
	Log logr.Logger
}

// Server serves the API. Make one with New.
type Server struct {
	Options
	requests request.RequestInfoFactory
	proxy    *frontProxy
	reviews  reviews
	open     *connlimit.Counter // by kind
}

// New returns a server. It does not connect yet. Errors: a configuration that no client can be made of.
func New(opts Options) (*Server, error) {
	if opts.Log.GetSink() == nil {
		opts.Log = logr.Discard()
	}
	clients, err := kubernetes.NewForConfig(opts.Config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster of the virtual machines: %w", err)
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

// Serve serves until the context ends, and then ends all streams. It closes the listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.proxy.run(ctx) })
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerLimit,
		IdleTimeout:       idleLimit,
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateActive { // after the handshake
				connlimit.Known(conn)
			}
		},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    log.New(lines{s.Log}, "", 0),
		// A stream takes its connection over, which HTTP/2 does not have.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, GetCertificate: s.Identity.Certificate, NextProtos: []string{"http/1.1"},
			// frontProxy verifies it, as the authority can change; for each request, too.
			ClientAuth: tls.RequireAnyClientCert, VerifyConnection: s.proxy.verify,
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	group.Go(func() error {
		if err := server.ServeTLS(connlimit.Listen(listener, maxAnonymous, maxAnonymousPerAddress), "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving subresources of virtual machines: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// lines logs what net/http complains about.
type lines struct{ to logr.Logger }

// Write implements io.Writer.
func (l lines) Write(line []byte) (int, error) {
	l.to.V(1).Info(string(line))
	return len(line), nil
}

// handler answers only requests of the front proxy, and only what their users may do.
func (s *Server) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := s.proxy.user(r)
		if err != nil {
			fail(w, err)
			return
		}
		info, err := s.requests.NewRequestInfo(r)
		if err != nil {
			fail(w, badRequest("the request cannot be read: %v", err))
			return
		}
		if document := discovery(r.Method, info.Path); document != nil {
			answer(w, http.StatusOK, document)
			return
		}
		if err := authorize(r.Context(), s.reviews, who, info); err != nil {
			fail(w, err)
			return
		}
		if err := s.serve(w, r, who, info); err != nil {
			fail(w, err)
		}
	})
}
