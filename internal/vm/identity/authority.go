package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/ca"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

const (
	// Lifetime is how long certificates of controller and hypervisors are valid.
	Lifetime = 24 * time.Hour

	blockCertificate = "CERTIFICATE"
)

var (
	// ErrBadRequest means that a certificate request cannot be parsed, is not signed with its key, or has an
	// unsupported kind of key.
	ErrBadRequest = errors.New("unusable certificate request")

	// ErrBadAuthority means that a certificate and key are not a certificate authority.
	ErrBadAuthority = errors.New("unusable certificate authority")
)

// Authority is the certificate authority of controller and hypervisors. During a rotation it trusts the certificates of
// other authorities in addition to its own. It is safe for concurrent use.
type Authority struct {
	anchors *atomic.Pointer[anchors]

	mu      sync.Mutex
	pair    ca.Pair
	changed chan struct{} // closed when the authority is replaced
	// followers are the digests of the authorities that each hypervisor trusts, as far as this process knows.
	followers map[Peer][]digest
}

func newAuthority(pair ca.Pair, others ...*x509.Certificate) *Authority {
	a := &Authority{anchors: &atomic.Pointer[anchors]{}, pair: pair, changed: make(chan struct{}), followers: map[Peer][]digest{}}
	a.anchors.Store(anchorsOf(append([]*x509.Certificate{pair.Cert}, others...), uriOwn))
	return a
}

// NewAuthority creates a certificate authority that is valid for ten years.
func NewAuthority(now time.Time) (*Authority, error) {
	pair, err := ca.New(x509.Certificate{
		Subject:        pkix.Name{CommonName: "millwright-vm-authority"},
		KeyUsage:       x509.KeyUsageCertSign,
		MaxPathLenZero: true,
	}, now)
	if err != nil {
		return nil, err
	}
	return newAuthority(pair), nil
}

// ParseAuthority is the inverse of Authority.PEM. It returns ErrBadAuthority for invalid input; the error never
// contains any part of the key. The authority trusts only the first certificate.
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	if _, err := parseCertificates(certPEM); err != nil {
		return nil, err
	}
	pair, err := ca.Parse(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadAuthority, err)
	}
	return newAuthority(pair), nil
}

// Trusting returns a copy of the authority that also trusts the certificate of another one.
func (a *Authority) Trusting(other *x509.Certificate) *Authority {
	a.mu.Lock()
	defer a.mu.Unlock()
	return newAuthority(a.pair, append(slices.Clone(a.anchors.Load().authorities[1:]), other)...)
}

// Replace makes this authority sign and trust what another one does. Credentials of this authority follow, and so do
// hypervisors that call Issuer.AwaitAuthorities.
func (a *Authority) Replace(by *Authority) {
	by.mu.Lock()
	pair, trusted := by.pair, by.anchors.Load()
	by.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Equal(a.anchors.Load().digests, trusted.digests) {
		return
	}
	a.pair = pair
	a.anchors.Store(trusted)
	close(a.changed)
	a.changed = make(chan struct{})
}

// PEM returns the authority's certificate and its PKCS #8 private key, both in PEM form.
func (a *Authority) PEM() (cert, key []byte) {
	pair := a.signer()
	return pair.CertPEM(), pair.KeyPEM()
}

// Bundle returns the trusted certificates in PEM form, the authority's own first.
func (a *Authority) Bundle() []byte {
	var bundle []byte
	for _, cert := range a.anchors.Load().authorities {
		bundle = append(bundle, EncodeCertificate(cert)...)
	}
	return bundle
}

// Certificate returns the authority's certificate. Do not modify it.
func (a *Authority) Certificate() *x509.Certificate { return a.signer().Cert }

func (a *Authority) signer() ca.Pair {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pair
}

// EncodeCertificate returns a certificate in PEM form.
func EncodeCertificate(cert *x509.Certificate) []byte { return ca.Pair{Cert: cert}.CertPEM() }

// ParseCertificate returns the first certificate of an authority in PEM form. It returns ErrBadAuthority for invalid
// input.
func ParseCertificate(certPEM []byte) (*x509.Certificate, error) {
	certs, err := parseCertificates(certPEM)
	if err != nil {
		return nil, err
	}
	return certs[0], nil
}

// MAC returns a message authentication code of a text, in hexadecimal form. Its key is derived from the private key, so
// that only processes with the authority can compute it, and changes with the authority.
func (a *Authority) MAC(text string) string {
	key, err := hkdf.Key(sha256.New, a.signer().KeyPEM(), nil, "millwright-vm-authority message authentication", sha256.Size)
	if err != nil {
		panic(fmt.Sprintf("deriving a key: %v", err)) // fails only for an invalid length
	}
	code := hmac.New(sha256.New, key)
	code.Write([]byte(text))
	return hex.EncodeToString(code.Sum(nil))
}

// Sign returns a certificate in DER form for a PKCS #10 request in DER form. The certificate is valid both for
// clients and for servers. Sign uses only the public key of the request. The certificate is valid for the given
// lifetime, but not longer than the authority's own certificate. Sign returns ErrBadRequest or ErrNotAPeer if its
// input is invalid.
func (a *Authority) Sign(csrDER []byte, peer Peer, lifetime time.Duration, now time.Time) ([]byte, error) {
	public, err := requestedKey(csrDER)
	if err != nil {
		return nil, err
	}
	if err := peer.validate(); err != nil {
		return nil, err
	}
	name, err := url.Parse(peer.String())
	if err != nil {
		return nil, err
	}
	signer, end := a.signer(), now.Add(lifetime)
	if end.After(signer.Cert.NotAfter) {
		end = signer.Cert.NotAfter
	}
	signed, err := signer.Sign(x509.Certificate{
		NotBefore:             now.Add(-ca.Backdate),
		NotAfter:              end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{name},
	}, public)
	if err != nil {
		return nil, err
	}
	return signed.Raw, nil
}

// ServerCertificate returns a certificate and key for a host name. It is for clients that verify names instead of
// identities, such as kube-apiserver; it is not valid as the identity of a peer. The certificate is valid for the
// given lifetime, but not longer than the authority's own certificate.
func (a *Authority) ServerCertificate(host string, lifetime time.Duration, now time.Time) (*tls.Certificate, error) {
	key, err := ca.NewKey()
	if err != nil {
		return nil, err
	}
	signer, end := a.signer(), now.Add(lifetime)
	if end.After(signer.Cert.NotAfter) {
		end = signer.Cert.NotAfter
	}
	signed, err := signer.Sign(x509.Certificate{
		Subject:               pkix.Name{CommonName: host},
		NotBefore:             now.Add(-ca.Backdate),
		NotAfter:              end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              []string{host},
	}, key.Public())
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{signed.Raw}, PrivateKey: key, Leaf: signed}, nil
}

// requestedKey returns the public key of a request, after verifying its signature.
func requestedKey(csrDER []byte) (crypto.PublicKey, error) {
	request, err := x509.ParseCertificateRequest(csrDER)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	// Check the kind of key first, because others can be expensive to verify.
	if !isSupported(request.PublicKey) {
		return nil, fmt.Errorf("%w: the key must be ECDSA on P-256 or P-384, or Ed25519", ErrBadRequest)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	return request.PublicKey, nil
}

func isSupported(key crypto.PublicKey) bool {
	switch public := key.(type) {
	case *ecdsa.PublicKey:
		return public.Curve == elliptic.P256() || public.Curve == elliptic.P384()
	case ed25519.PublicKey:
		return true
	}
	return false
}

// parseCertificates parses one or more CA certificates in PEM form.
func parseCertificates(certPEM []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(certPEM); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != blockCertificate {
			return nil, fmt.Errorf("%w: expected only certificates in PEM form, found another PEM block", ErrBadAuthority)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBadAuthority, err)
		}
		if err := checkAuthority(cert); err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, fmt.Errorf("%w: no PEM certificate found", ErrBadAuthority)
	}
	return certs, nil
}

func checkAuthority(cert *x509.Certificate) error {
	if !cert.BasicConstraintsValid || !cert.IsCA {
		return fmt.Errorf("%w: not a CA certificate", ErrBadAuthority)
	}
	return nil
}

// newRequest generates a key and a certificate request for it.
func newRequest() (key *ecdsa.PrivateKey, csrDER []byte, err error) {
	if key, err = ca.NewKey(); err != nil {
		return nil, nil, err
	}
	csrDER, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return key, csrDER, err
}

// maxTokenLength is far above the length of a service account token, in bytes.
const maxTokenLength = 16 << 10

// Issuer is the controller's gRPC service that exchanges a hypervisor's token for a
// certificate.
type Issuer struct {
	identitypb.UnimplementedCertificateAuthorityServer

	// Authority signs. Required.
	Authority *Authority
	// Resolve reviews a token and returns the hypervisor that it belongs to. Required. If Resolve returns a gRPC
	// status, the caller receives it: UNAUTHENTICATED for a token that is invalid or not bound to a Pod,
	// PERMISSION_DENIED for a Pod that is not a hypervisor. Any other error is logged, and the caller receives
	// UNAVAILABLE. The token is redacted from errors.
	Resolve func(ctx context.Context, token string) (Peer, error)
	// Now is the clock. The default is time.Now.
	Now func() time.Time
	// Log is the logger for errors. If nil, nothing is logged.
	Log *slog.Logger
}

// Issue implements CertificateAuthority.
func (i *Issuer) Issue(ctx context.Context, request *identitypb.IssueRequest) (*identitypb.IssueResponse, error) {
	// Check the request first, because that needs no API request.
	if _, err := requestedKey(request.GetCertificateRequest()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	token := request.GetToken()
	if token == "" || len(token) > maxTokenLength {
		return nil, status.Error(codes.Unauthenticated, "the token is missing or too long")
	}
	peer, err := i.Resolve(ctx, token)
	if err != nil {
		return nil, i.refusal(err, token)
	}
	if peer.IsController() {
		return nil, status.Error(codes.PermissionDenied, "cannot issue a certificate for the controller's identity")
	}
	now := time.Now
	if i.Now != nil {
		now = i.Now
	}
	der, err := i.Authority.Sign(request.GetCertificateRequest(), peer, Lifetime, now())
	if err != nil {
		i.logError("cannot sign a certificate", "peer", peer.String(), "error", err.Error())
		return nil, status.Error(codes.Internal, "cannot sign the certificate")
	}
	return &identitypb.IssueResponse{Certificate: der}, nil
}

// refusal returns the gRPC status for an error of Resolve, without the token.
func (i *Issuer) refusal(err error, token string) error {
	text := strings.ReplaceAll(err.Error(), token, "[token]")
	if refused, ok := status.FromError(err); ok {
		return status.Error(refused.Code(), strings.ReplaceAll(refused.Message(), token, "[token]"))
	}
	i.logError("cannot review a token", "error", text)
	return status.Error(codes.Unavailable, "cannot review the token at the moment")
}

func (i *Issuer) logError(message string, details ...any) {
	if i.Log != nil {
		i.Log.Error(message, details...)
	}
}
