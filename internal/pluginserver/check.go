package pluginserver

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// required are the operations that every driver must support.
var required = []driverpb.OperationType{driverpb.OperationType_OT_CREATE_MACHINE, driverpb.OperationType_OT_DELETE_MACHINE}

// Limits for the kinds that a driver migrates.
const (
	maxMigrated     = 64
	maxMigratedName = 253
)

// check returns a gRPC status if a driver must not register.
func (s *Server) check(ctx context.Context, r *driverpb.Registration) error {
	err := registry.CheckName(r.GetKind())
	switch {
	case r.GetKind() == registry.AnyProvider:
		return status.Error(codes.InvalidArgument, "kind: must not be empty")
	case err != nil:
		return status.Errorf(codes.InvalidArgument, "kind: %v", err)
	case len(r.GetInstance()) < driverpb.MinInstance || len(r.GetInstance()) > driverpb.MaxInstance:
		return status.Errorf(codes.InvalidArgument, "instance: must have %d to %d bytes", driverpb.MinInstance, driverpb.MaxInstance)
	case r.GetMaxOperations() > driverpb.MaxOperations:
		return status.Errorf(codes.InvalidArgument, "max_operations: %d exceeds the maximum of %d", r.GetMaxOperations(), driverpb.MaxOperations)
	case len(r.GetVersion()) > driverpb.MaxVersion:
		return status.Errorf(codes.InvalidArgument, "version: must have at most %d bytes", driverpb.MaxVersion)
	case r.GetApiVersion() != v1alpha1.SchemeGroupVersion.String():
		return status.Errorf(codes.FailedPrecondition, "api_version: this manager supports only %s", v1alpha1.SchemeGroupVersion.String())
	}
	if kinds := r.GetMigratedKinds(); len(kinds) > maxMigrated || slices.ContainsFunc(kinds, func(kind string) bool { return len(kind) > maxMigratedName }) {
		return status.Errorf(codes.InvalidArgument, "migrated_kinds: must have at most %d names of at most %d bytes", maxMigrated, maxMigratedName)
	}
	for _, one := range required {
		if !slices.Contains(r.GetOperations(), one) {
			return status.Errorf(codes.InvalidArgument, "operations: %v is required", one)
		}
	}
	return permit(ctx, r.GetKind())
}

// permit returns an error if the caller's certificate is not valid for a kind of driver. A caller without TLS
// uses an endpoint that does not require certificates.
func permit(ctx context.Context, kind string) error {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated, "the caller is unknown")
	}
	secured, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil
	}
	if len(secured.State.VerifiedChains) == 0 || len(secured.State.VerifiedChains[0]) == 0 {
		return status.Error(codes.Unauthenticated, "no client certificate")
	}
	leaf := secured.State.VerifiedChains[0][0]
	for _, name := range append([]string{leaf.Subject.CommonName}, leaf.DNSNames...) {
		if strings.EqualFold(name, kind) {
			return nil
		}
	}
	return status.Errorf(codes.PermissionDenied, "the client certificate is not valid for kind %q: neither its common name nor a DNS name matches", kind)
}

// GetMachineClass implements driverpb.InfraServer.
func (s *Server) GetMachineClass(ctx context.Context, meta *driverpb.MachineClassMeta) (*driverpb.MachineClass, error) {
	found, err := s.running(ctx, meta.GetOperationId())
	if err != nil {
		return nil, err
	}
	given := found.message.GetMachineClass()
	if found.class == nil || given.GetNamespace() != meta.GetNamespace() || given.GetName() != meta.GetName() || given.GetVersion() != meta.GetVersion() {
		return nil, status.Error(codes.PermissionDenied, "the operation does not refer to this class")
	}
	return &driverpb.MachineClass{Version: given.GetVersion(), Object: found.class}, nil
}

// GetSecret implements driverpb.InfraServer.
func (s *Server) GetSecret(ctx context.Context, meta *driverpb.SecretMeta) (*driverpb.Secret, error) {
	found, err := s.running(ctx, meta.GetOperationId())
	if err != nil {
		return nil, err
	}
	given := found.message.GetSecret()
	if given == nil || given.GetNamespace() != meta.GetNamespace() || given.GetName() != meta.GetName() || given.GetVersion() != meta.GetVersion() {
		return nil, status.Error(codes.PermissionDenied, "the operation does not refer to this Secret")
	}
	return &driverpb.Secret{Version: given.GetVersion(), Data: found.secret}, nil
}

// running returns a running operation that was sent to the caller.
func (s *Server) running(ctx context.Context, id string) (*operation, error) {
	s.mu.Lock()
	all := make([]*Driver, 0, len(s.kinds))
	for _, d := range s.kinds {
		all = append(all, d)
	}
	s.mu.Unlock()
	for _, d := range all {
		if found := d.running(id); found != nil {
			return found, permit(ctx, d.kind)
		}
	}
	return nil, status.Error(codes.NotFound, "no operation with this ID is running")
}
