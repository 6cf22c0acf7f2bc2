package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

// Dial makes a connection to one server, which must prove to be the expected peer. Like
// grpc.NewClient it does not wait for the server, and connects again when needed; a call
// without a connection, also for the lack of a certificate, is UNAVAILABLE. The options
// come after ours. Errors: ErrNotAPeer if expected is nobody, and those of
// grpc.NewClient.
func (c *Credentials) Dial(endpoint string, expected Peer, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	if err := expected.validate(); err != nil {
		return nil, err
	}
	transport := &clientTransport{
		TransportCredentials: credentials.NewTLS(c.trust.client(expected)),
		credentials:          c,
		expected:             expected,
	}
	all := append([]grpc.DialOption{grpc.WithTransportCredentials(transport)}, options...)
	conn, err := grpc.NewClient(endpoint, all...)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s at %s: %w", expected, endpoint, err)
	}
	return conn, nil
}

// ServerOptions make a gRPC server speak TLS with this certificate, to clients with a
// certificate of the same authority. A handler learns who calls by FromContext.
//
// The controller's server also takes clients without a certificate, and answers
// UNAUTHENTICATED to all that they call but CertificateAuthority. It does so by chained
// interceptors, the first of their chains if these options come first.
func (c *Credentials) ServerOptions() []grpc.ServerOption {
	auth := tls.RequireAndVerifyClientCert
	if c.self == uriController {
		auth = tls.VerifyClientCertIfGiven
	}
	config := c.trust.server(auth)
	config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return c.certificate(hello.Context())
	}
	return []grpc.ServerOption{
		grpc.Creds(credentials.NewTLS(config)),
		grpc.ChainUnaryInterceptor(authenticateUnary),
		grpc.ChainStreamInterceptor(authenticateStream),
	}
}

// authenticate accepts callers with a certificate, and all callers of Issue.
func authenticate(ctx context.Context, method string) error {
	if method == identitypb.CertificateAuthority_Issue_FullMethodName {
		return nil
	}
	_, err := FromContext(ctx)
	return err
}

func authenticateUnary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if err := authenticate(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func authenticateStream(
	server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if err := authenticate(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(server, stream)
}

// clientTransport is TLS that takes the certificate of the moment for every connection,
// and notices when the server does not like it.
type clientTransport struct {
	credentials.TransportCredentials
	credentials *Credentials
	expected    Peer
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *clientTransport) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	// Got before the handshake, whose time limit is the server's patience.
	cert, err := t.credentials.certificate(ctx)
	if err != nil {
		// Without its status, which gRPC would take for the answer to the call that
		// wanted the connection. Without a connection that is UNAVAILABLE.
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
	return &watchedConn{Conn: conn, onRefusal: func() { t.credentials.refused(cert) }}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (t *clientTransport) Clone() credentials.TransportCredentials {
	clone := *t
	clone.TransportCredentials = t.TransportCredentials.Clone()
	return &clone
}

// watchedConn looks out for the server's refusal of our certificate. In TLS 1.3 a
// client's handshake is over before the server has looked at the certificate, so the
// refusal is an alert in place of the first bytes; or a reset, if the server closed the
// connection while what we sent was still unread.
type watchedConn struct {
	net.Conn
	onRefusal func()
	begun     atomic.Bool
}

// Read implements net.Conn.
func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.begun.Swap(true) && err != nil && isRefusal(err) {
		c.onRefusal()
	}
	return n, err
}

func isRefusal(err error) bool {
	var alert *net.OpError // that is how crypto/tls gives alerts
	return errors.As(err, &alert) && alert.Op == "remote error" || errors.Is(err, syscall.ECONNRESET)
}
