package identity

import (
	"bytes"
	"context"
	"crypto/ecdsa"
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

func TestIssuer(t *testing.T) {
	now := newClock().Now
	authority := value[*Authority](t)(NewAuthority(now()))
	good := request(t, value[*ecdsa.PrivateKey](t)(ca.NewKey()))
	const token = "header.secret.signature"
	tests := map[string]struct {
		request []byte
		token   string
		peer    Peer
		err     error
		want    codes.Code
	}{
		"a hypervisor":        {good, token, pod, nil, codes.OK},
		"truncated request":   {good[:20], token, pod, nil, codes.InvalidArgument},
		"no token":            {good, "", pod, nil, codes.Unauthenticated},
		"token too long":      {good, strings.Repeat("a", maxTokenLength+1), pod, nil, codes.Unauthenticated},
		"invalid token":       {good, token, pod, status.Error(codes.Unauthenticated, "no "+token), codes.Unauthenticated},
		"not a hypervisor":    {good, token, pod, fmt.Errorf("pod: %w", status.Error(codes.PermissionDenied, token)), codes.PermissionDenied},
		"no API server":       {good, token, pod, errors.New("posting " + token), codes.Unavailable},
		"as the controller":   {good, token, Controller(), nil, codes.PermissionDenied},
		"without an identity": {good, token, Peer{}, nil, codes.Internal},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			issuer := &Issuer{
				Authority: authority, Now: now, Log: slog.New(slog.NewTextHandler(&log, nil)),
				Resolve: func(context.Context, string) (Peer, error) { return test.peer, test.err },
			}
			response, err := issuer.Issue(t.Context(), &identitypb.IssueRequest{CertificateRequest: test.request, Token: test.token})
			wantCode(t, err, test.want)
			if (err == nil) != (len(response.GetCertificate()) > 0) {
				t.Errorf("error = %v, certificate of %d bytes", err, len(response.GetCertificate()))
			}
			if all := fmt.Sprint(err, log.String()); strings.Contains(all, "secret") {
				t.Errorf("the token is in %q", all)
			}
		})
	}
}
