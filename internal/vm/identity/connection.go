package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/tracing"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

// maxFields limits the fields of a response, because a hypervisor may be compromised. It is far above what responses
// have.
const maxFields = 4096

// Dial returns a connection to a server that must have the expected identity. Like grpc.NewClient, it does not
// wait for the server. A call without a connection or certificate fails with UNAVAILABLE. Dial returns ErrNotAPeer
// if expected is invalid, and the errors of grpc.NewClient. A response with more than 4096 fields is an error.
func (c *Credentials) Dial(endpoint string, expected Peer, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	if err := expected.validate(); err != nil {
		return nil, err
	}
	transport := &clientTransport{
		TransportCredentials: credentials.NewTLS(c.trust.client(expected)),
		credentials:          c,
		expected:             expected,
	}
	all := slices.Concat([]grpc.DialOption{grpc.WithTransportCredentials(transport), connlimit.Responses(maxFields)}, tracing.DialOptions(), options)
	conn, err := grpc.NewClient(endpoint, all...)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s at %s: %w", expected, endpoint, err)
	}
	return conn, nil
}

// ServerOptions configure a gRPC server to use TLS with this certificate and to require client certificates of the
// same authority; see FromContext for the identity of the client.
//
// The server of a controller that issues certificates also accepts clients without one, but only for
// CertificateAuthority/Issue: a chained interceptor rejects other calls with UNAUTHENTICATED.
//
// Each wrap function may change the credentials, for example to refuse connections.
func (c *Credentials) ServerOptions(wrap ...func(credentials.TransportCredentials) credentials.TransportCredentials) []grpc.ServerOption {
	auth := tls.RequireAndVerifyClientCert
	if c.self == uriController {
		auth = tls.VerifyClientCertIfGiven
	}
	transport := credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			cert, err := c.certificate(hello.Context())
			if err != nil {
				return nil, err
			}
			config := c.trust.server(auth) // read after the certificate, because both may have changed
			config.Certificates = []tls.Certificate{*cert}
			config.NextProtos = []string{"h2"} // set here because this configuration replaces the one that gRPC fills in
			return config, nil
		},
	})
	for _, change := range wrap {
		transport = change(transport)
	}
	return append([]grpc.ServerOption{grpc.Creds(transport)}, Intercept(authenticate)...)
}

// Only returns a wrap function for ServerOptions. The server then refuses clients without a certificate, and peers
// for which may returns false because they may not call any method.
func Only(may func(Peer) bool) func(credentials.TransportCredentials) credentials.TransportCredentials {
	return func(inner credentials.TransportCredentials) credentials.TransportCredentials {
		return &selective{inner, may}
	}
}

type selective struct {
	credentials.TransportCredentials
	may func(Peer) bool
}

// ServerHandshake implements credentials.TransportCredentials.
func (s *selective) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	peer, err := FromAuthInfo(info)
	if err == nil && !s.may(peer) {
		err = fmt.Errorf("%s may not connect to this server", peer)
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, info, nil
}

// Clone implements credentials.TransportCredentials.
func (s *selective) Clone() credentials.TransportCredentials {
	return &selective{s.TransportCredentials.Clone(), s.may}
}

// authenticate accepts callers with a certificate, and callers of Issue without one.
func authenticate(ctx context.Context, method string) error {
	if method == identitypb.CertificateAuthority_Issue_FullMethodName {
		return nil
	}
	_, err := FromContext(ctx)
	return err
}

// Intercept makes a gRPC server call check before each method. If check fails, the caller receives its error.
func Intercept(check func(ctx context.Context, method string) error) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := check(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return next(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := check(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return next(service, stream)
		}),
	}
}

// clientTransport is TLS that uses the current certificate for every connection and detects that a server rejects
// it.
type clientTransport struct {
	credentials.TransportCredentials
	credentials *Credentials
	expected    Peer
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *clientTransport) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	// Get the certificate before the handshake, which has a timeout.
	cert, err := t.credentials.certificate(ctx)
	if err != nil {
		// Drop the gRPC status: gRPC would return it for the call instead of UNAVAILABLE.
		return nil, nil, errors.New(err.Error())
	}
	config := t.credentials.trust.client(t.expected)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return cert, nil
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return &watchedConn{Conn: conn, onRefusal: func(error) { t.credentials.refused(cert) }}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (t *clientTransport) Clone() credentials.TransportCredentials {
	clone := *t
	clone.TransportCredentials = t.TransportCredentials.Clone()
	return &clone
}

// watchedConn detects that the server rejects the certificate. In TLS 1.3 the client's handshake completes before
// the server has verified the certificate. The rejection is therefore an alert in place of the first bytes, or a
// connection reset if the server had not read everything.
type watchedConn struct {
	net.Conn
	onRefusal func(error)
	begun     atomic.Bool
}

// Read implements net.Conn.
func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.begun.Swap(true) && err != nil && isRefusal(err) {
		c.onRefusal(err)
	}
	return n, err
}

func isRefusal(err error) bool { return isAlert(err) || errors.Is(err, syscall.ECONNRESET) }

func isAlert(err error) bool {
	var alert *net.OpError // the type of an alert in crypto/tls
	return errors.As(err, &alert) && alert.Op == "remote error"
}
