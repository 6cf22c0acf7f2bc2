package identity

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/ca"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

// FuzzIssue checks that, for any request and token, a certificate has the single name that belongs to the token
// and is not a CA certificate, and that neither the response nor the log contains the token.
func FuzzIssue(f *testing.F) {
	now := newClock().Now
	authority := value[*Authority](f)(NewAuthority(now()))
	const known = "header.secret.signature"
	good := value[[]byte](f)(x509.CreateCertificateRequest(bytes.NewReader(make([]byte, 1024)), &x509.CertificateRequest{DNSNames: []string{"kubernetes"}}, value[*ecdsa.PrivateKey](f)(ca.NewKey())))
	for _, request := range [][]byte{good, good[:20], nil} {
		for _, token := range []string{known, "", "a", "another\x1b[2J", strings.Repeat("a", maxTokenLength+1)} {
			f.Add(request, token, "vm-1")
		}
	}
	f.Add(good, known, "../vm-1")
	f.Add(good, known, "vm 1?#")
	f.Fuzz(func(t *testing.T, request []byte, token, vm string) {
		resolved := Peer{Namespace: "pool", VM: vm, Pod: "vm-1-abc"}
		var log bytes.Buffer
		issuer := &Issuer{
			Authority: authority, Now: now, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Resolve: func(_ context.Context, got string) (Peer, error) { return resolve(got, known, resolved) },
		}
		response, err := issuer.Issue(t.Context(), &identitypb.IssueRequest{CertificateRequest: request, Token: token})
		if all := fmt.Sprint(err, log.String()); len(token) > 8 && strings.Contains(all, token) {
			t.Errorf("the token is in %q", all)
		}
		if err != nil {
			if status.Code(err) == codes.Unknown || len(response.GetCertificate()) > 0 {
				t.Errorf("error = %v, certificate of %d bytes", err, len(response.GetCertificate()))
			}
			return
		}
		if token != known {
			t.Fatal("issued a certificate for an unknown token")
		}
		wantOnly(t, response.GetCertificate(), resolved)
	})
}

// wantOnly checks that a certificate has only the given name.
func wantOnly(t *testing.T, der []byte, want Peer) {
	t.Helper()
	issued := value[*x509.Certificate](t)(x509.ParseCertificate(der))
	if issued.IsCA || len(issued.URIs) != 1 || len(issued.DNSNames)+len(issued.IPAddresses)+len(issued.EmailAddresses) > 0 {
		t.Fatalf("issued for %v, %v, %v, CA: %t", issued.URIs, issued.DNSNames, issued.IPAddresses, issued.IsCA)
	}
	if of, err := parsePeer(issued.URIs[0].String()); err != nil || of != want {
		t.Errorf("peerOf() = %v, %v; want %v", of, err, want)
	}
}

// resolve knows a single token. Other tokens either cannot be reviewed or are invalid.
func resolve(token, known string, of Peer) (Peer, error) {
	switch {
	case token == known:
		return of, nil
	case len(token) > 8:
		return Peer{}, errors.New("posting " + token)
	}
	return Peer{}, status.Error(codes.Unauthenticated, "no Pod has this token")
}
