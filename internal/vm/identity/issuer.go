package identity

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

// maxTokenLength is far above what tokens of service accounts need.
const maxTokenLength = 16 << 10

// Issuer is the gRPC service that exchanges a hypervisor's token for a certificate.
// Register it on the controller's server.
type Issuer struct {
	identitypb.UnimplementedCertificateAuthorityServer

	// Authority signs. Required.
	Authority *Authority
	// Resolve reviews a token and returns the hypervisor that it is for. Required. An error that is a gRPC
	// status goes to the caller as it is: UNAUTHENTICATED for a token that is not valid
	// or not bound to a Pod, PERMISSION_DENIED for a Pod that is no hypervisor. Any
	// other means that the token cannot be checked now: it is logged, and the caller
	// gets UNAVAILABLE. The token itself is removed from errors.
	Resolve func(ctx context.Context, token string) (Peer, error)
	// Now is the clock; nil stands for time.Now.
	Now func() time.Time
	// Log gets what goes wrong on our side. Nil discards it.
	Log *slog.Logger
}

// Issue implements CertificateAuthority.
func (i *Issuer) Issue(ctx context.Context, request *identitypb.IssueRequest) (*identitypb.IssueResponse, error) {
	// The request first, since to look at it costs nobody else anything.
	if _, err := requestedKey(request.GetCertificateRequest()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	token := request.GetToken()
	if token == "" || len(token) > maxTokenLength {
		return nil, status.Error(codes.Unauthenticated, "no token, or one that is too long")
	}
	peer, err := i.Resolve(ctx, token)
	if err != nil {
		return nil, i.refusal(err, token)
	}
	if peer.IsController() {
		return nil, status.Error(codes.PermissionDenied, "the controller's certificate is not handed out")
	}
	now := time.Now
	if i.Now != nil {
		now = i.Now
	}
	der, err := i.Authority.Sign(request.GetCertificateRequest(), peer, Lifetime, now())
	if err != nil {
		i.complain("certificate not signed", "peer", peer.URI(), "error", err.Error())
		return nil, status.Error(codes.Internal, "the certificate cannot be signed")
	}
	return &identitypb.IssueResponse{Certificate: der}, nil
}

// refusal returns the status for an error of Resolve.
func (i *Issuer) refusal(err error, token string) error {
	text := strings.ReplaceAll(err.Error(), token, "[token]")
	if answer, ok := status.FromError(err); ok {
		return status.Error(answer.Code(), strings.ReplaceAll(answer.Message(), token, "[token]"))
	}
	i.complain("token not checked", "error", text)
	return status.Error(codes.Unavailable, "the token cannot be checked now")
}

func (i *Issuer) complain(message string, details ...any) {
	if i.Log != nil {
		i.Log.Error(message, details...)
	}
}
