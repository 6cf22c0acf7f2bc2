package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/connlimit"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

// ErrNoIssuer means that the controller is reachable but does not issue certificates.
var ErrNoIssuer = errors.New("the controller does not issue certificates")

// Options are the options of ForHypervisor.
type Options struct {
	// Authority holds the certificates of the trusted authorities, in PEM form. Required.
	Authority []byte
	// TokenFile is the file with the bound token of the Pod. It is read for every certificate, because the token
	// changes. Required.
	TokenFile string
	// Endpoint is the gRPC target of the controller. Required.
	Endpoint string
	// Now is the clock. The default is time.Now.
	Now func() time.Time
	// Log is the logger for failed renewals. If nil, nothing is logged.
	Log *slog.Logger
}

// ForHypervisor returns the credentials of a hypervisor process. It does not connect yet. It returns
// ErrBadAuthority if the authority is invalid.
func ForHypervisor(options Options) (*Credentials, error) {
	authorities, err := parseCertificates(options.Authority)
	if err != nil {
		return nil, err
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	c := &Credentials{
		trust: newTrust(authorities, options.Now),
		log:   options.Log,
		self:  "this hypervisor",

		follows: true,
	}
	c.obtain = func(ctx context.Context) (*tls.Certificate, error) {
		return c.trust.ask(ctx, options.Endpoint, options.TokenFile)
	}
	return c, nil
}

// ask requests a certificate from the controller with the token of the Pod.
func (t trust) ask(ctx context.Context, endpoint, tokenFile string) (*tls.Certificate, error) {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, fmt.Errorf("reading the token: %w", err)
	}
	key, request, err := newRequest()
	if err != nil {
		return nil, err
	}
	response, err := t.issue(ctx, endpoint, &identitypb.IssueRequest{
		CertificateRequest: request,
		Token:              string(bytes.TrimSpace(token)),
	})
	if err != nil {
		return nil, err
	}
	cert, err := withLeaf(response.GetCertificate(), key)
	if err != nil {
		return nil, err
	}
	self, err := t.verify([]*x509.Certificate{cert.Leaf}, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, fmt.Errorf("invalid response from the controller: %w", err)
	}
	if self.IsController() {
		return nil, errors.New("the controller issued a certificate for its own identity")
	}
	return cert, nil
}

// issue calls the controller without a client certificate. The connection is closed afterwards, because it is
// needed only about once a day. Errors: ErrNoIssuer, and those of the call.
func (t trust) issue(
	ctx context.Context, endpoint string, request *identitypb.IssueRequest,
) (*identitypb.IssueResponse, error) {
	// The handshake fails with any other server, so only the controller receives the token.
	transport := &anonymousTransport{TransportCredentials: credentials.NewTLS(t.client(Controller()))}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(transport), connlimit.Responses(maxFields))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	response, err := identitypb.NewCertificateAuthorityClient(conn).Issue(ctx, request)
	switch {
	case status.Code(err) == codes.Unimplemented:
		return nil, fmt.Errorf("%w: it does not implement %s", ErrNoIssuer, identitypb.CertificateAuthority_Issue_FullMethodName)
	case err != nil && transport.refused.Load():
		return nil, fmt.Errorf("%w: it rejects clients without a certificate", ErrNoIssuer)
	}
	return response, err
}

// anonymousTransport is TLS without a client certificate. It detects that the server requires one.
type anonymousTransport struct {
	credentials.TransportCredentials
	refused atomic.Bool
}

// ClientHandshake implements credentials.TransportCredentials. In TLS 1.3 the client's handshake completes before
// the server has checked the client, so a rejection arrives with the first read. A gRPC server sends first, so the
// client waits for the first bytes before it writes. If it wrote to a connection that the server has closed, the
// connection would be reset and the reason would be lost.
func (t *anonymousTransport) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	first := make([]byte, 1)
	n, err := conn.Read(first)
	if err != nil {
		if isAlert(err) { // a reset connection does not carry the reason
			t.refused.Store(true)
		}
		_ = conn.Close()
		return nil, nil, err
	}
	return &prefixedConn{Conn: conn, prefix: first[:n]}, info, nil
}

// prefixedConn returns the bytes that were read earlier, followed by those of the connection.
type prefixedConn struct {
	net.Conn
	prefix []byte
}

// Read implements net.Conn.
func (c *prefixedConn) Read(p []byte) (int, error) {
	if len(c.prefix) > 0 {
		n := copy(p, c.prefix)
		c.prefix = c.prefix[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// Clone implements credentials.TransportCredentials.
func (t *anonymousTransport) Clone() credentials.TransportCredentials { return t }
