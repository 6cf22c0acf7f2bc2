package storage

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	storagepb "github.com/millwright-dev/millwright/proto/storage"
)

// At returns the volume that a disk server serves. The connection must use the controller's identity.
func At(conn grpc.ClientConnInterface) Volume { return remote{storagepb.NewDiskServerClient(conn)} }

type remote struct{ server storagepb.DiskServerClient }

// Open implements Volume.
func (r remote) Open(ctx context.Context, token Token, pod string) (Attachment, error) {
	at, err := r.server.Open(ctx, &storagepb.OpenRequest{Token: uint64(token), Pod: pod})
	if err != nil {
		return Attachment{}, fmt.Errorf("opening disks with token %d: %w", token, typed(err))
	}
	return Attachment{Address: at.GetAddress(), Pod: at.GetPod()}, nil
}

// Revoke implements Volume.
func (r remote) Revoke(ctx context.Context, upTo Token) error {
	if _, err := r.server.Revoke(ctx, &storagepb.RevokeRequest{UpToToken: uint64(upTo)}); err != nil {
		return fmt.Errorf("revoking tokens up to %d: %w", upTo, typed(err))
	}
	return nil
}

// typed converts a gRPC error to the matching error of this package, if there is one.
func typed(err error) error {
	for cause, code := range CodesOf {
		if status.Code(err) == code {
			return fmt.Errorf("%w: %w", cause, err)
		}
	}
	return err
}

// CodesOf maps the permanent errors of a disk server to gRPC codes.
var CodesOf = map[error]codes.Code{
	ErrNoToken:     codes.InvalidArgument,
	ErrRevoked:     codes.FailedPrecondition,
	ErrOtherHolder: codes.AlreadyExists,
}
