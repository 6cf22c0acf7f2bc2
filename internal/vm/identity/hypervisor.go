package identity

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

// Methods that every key of the standard library has.
type (
	privateKey = crypto.Signer
	publicKey  interface{ Equal(crypto.PublicKey) bool }
)

// Options are what a hypervisor process needs to get its certificate.
type Options struct {
	// Authority holds the certificates of the trusted authorities, in PEM form.
	// Required.
	Authority []byte
	// TokenFile is the file with the Pod's bound token. It is read for every
	// certificate anew, since the token changes. Required.
	TokenFile string
	// Endpoint is the gRPC target of the controller. Required.
	Endpoint string
	// Now is the clock; nil stands for time.Now.
	Now func() time.Time
	// Log gets a line when a certificate cannot be renewed. Nil discards it.
	Log *slog.Logger
}

// ForHypervisor returns the credentials of a hypervisor process. It does not connect to
// anything yet. An error is ErrBadAuthority.
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
	}
	c.obtain = func(ctx context.Context) (*tls.Certificate, error) {
		return c.trust.ask(ctx, options.Endpoint, options.TokenFile)
	}
	return c, nil
}

// ask has the controller sign a certificate for the Pod of the token.
func (t trust) ask(ctx context.Context, endpoint, tokenFile string) (*tls.Certificate, error) {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, fmt.Errorf("reading the token: %w", err)
	}
	key, request, err := newRequest()
	if err != nil {
		return nil, err
	}
	answer, err := t.issue(ctx, endpoint, &identitypb.IssueRequest{
		CertificateRequest: request,
		Token:              string(bytes.TrimSpace(token)),
	})
	if err != nil {
		return nil, err
	}
	cert, err := withLeaf(answer.GetCertificate(), key)
	if err != nil {
		return nil, err
	}
	self, err := t.verify(cert.Leaf, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, fmt.Errorf("the controller's answer: %w", err)
	}
	if self.IsController() {
		return nil, errors.New("the controller's answer is a certificate for the controller")
	}
	return cert, nil
}

// issue calls the controller without a certificate. The connection is not kept: it is
// needed once in a day.
func (t trust) issue(
	ctx context.Context, endpoint string, request *identitypb.IssueRequest,
) (*identitypb.IssueResponse, error) {
	// The token goes to the controller only: the handshake fails before it is sent
	// to anybody else.
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(credentials.NewTLS(t.client(Controller()))))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return identitypb.NewCertificateAuthorityClient(conn).Issue(ctx, request)
}
