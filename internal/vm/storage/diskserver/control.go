package diskserver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	storagepb "github.com/millwright-dev/millwright/proto/storage"
)

// control is the service for the VM controller.
type control struct {
	storagepb.UnimplementedDiskServerServer
	server *Server
	at     storage.Attachment
}

// Register registers the disks with a gRPC server for the VM controller. The server must require certificates. The
// attachment specifies where sessions are served.
func (s *Server) Register(to grpc.ServiceRegistrar, at storage.Attachment) {
	storagepb.RegisterDiskServerServer(to, &control{server: s, at: at})
}

// Open implements storagepb.DiskServerServer.
func (c *control) Open(ctx context.Context, request *storagepb.OpenRequest) (*storagepb.OpenResponse, error) {
	if err := onlyController(ctx); err != nil {
		return nil, err
	}
	if err := c.server.Open(ctx, storage.Token(request.GetToken()), request.GetPod()); err != nil {
		return nil, statusOf(err)
	}
	return &storagepb.OpenResponse{Address: c.at.Address, Pod: c.at.Pod}, nil
}

// Revoke implements storagepb.DiskServerServer.
func (c *control) Revoke(ctx context.Context, request *storagepb.RevokeRequest) (*storagepb.RevokeResponse, error) {
	if err := onlyController(ctx); err != nil {
		return nil, err
	}
	if err := c.server.Revoke(ctx, storage.Token(request.GetUpToToken())); err != nil {
		return nil, statusOf(err)
	}
	return &storagepb.RevokeResponse{}, nil
}

// maxBytes is the size limit of a disk.
const maxBytes = 1 << 52

// Grow implements storagepb.DiskServerServer.
func (c *control) Grow(ctx context.Context, request *storagepb.GrowRequest) (*storagepb.GrowResponse, error) {
	if err := onlyController(ctx); err != nil {
		return nil, err
	}
	if c.server.config.Grow == nil {
		return nil, status.Error(codes.Unimplemented, "this disk server cannot enlarge disks")
	}
	desired := map[string]uint64{}
	for _, disk := range request.GetDisks() {
		if disk.GetBytes() > maxBytes {
			return nil, status.Errorf(codes.InvalidArgument, "a disk of %d bytes is larger than 4 PiB", disk.GetBytes())
		}
		desired[disk.GetName()] = disk.GetBytes()
	}
	sizes, err := c.server.config.Grow(desired)
	if err != nil {
		code := codes.Unavailable
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
			code = codes.ResourceExhausted
		}
		return nil, status.Error(code, err.Error())
	}
	response := &storagepb.GrowResponse{}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		response.Disks = append(response.Disks, &storagepb.DiskSize{Name: name, Bytes: sizes[name]})
	}
	return response, nil
}

func onlyController(ctx context.Context) error {
	caller, err := identity.FromContext(ctx)
	if err == nil && !caller.IsController() {
		err = status.Errorf(codes.PermissionDenied, "%s may not control access to the disks", caller)
	}
	return err
}

// statusOf returns the gRPC status for an error. The code is UNAVAILABLE if the same call may succeed later.
func statusOf(err error) error {
	code := codes.Unavailable
	for cause, of := range storage.CodesOf {
		if errors.Is(err, cause) {
			code = of
		}
	}
	return status.Error(code, err.Error())
}
