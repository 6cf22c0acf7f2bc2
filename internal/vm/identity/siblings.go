package identity

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Siblings are the hypervisors of one VM, identified by the names of their Pods. All fields are required.
type Siblings struct {
	// Credentials are the credentials of this hypervisor.
	Credentials *Credentials
	// Namespace and VM name the VM that all of them belong to.
	Namespace, VM string
}

func (s Siblings) peer(pod string) Peer { return Peer{Namespace: s.Namespace, VM: s.VM, Pod: pod} }

// Dial calls Credentials.Dial for the hypervisor in a Pod.
func (s Siblings) Dial(endpoint, pod string) (*grpc.ClientConn, error) {
	return s.Credentials.Dial(endpoint, s.peer(pod))
}

// Accept calls Credentials.Accept for the hypervisor in a Pod.
func (s Siblings) Accept(ctx context.Context, raw net.Conn, pod, protocol string) (*tls.Conn, error) {
	return s.Credentials.Accept(ctx, raw, s.peer(pod), protocol)
}

// AcceptAny is like Accept for all hypervisors of the VM. It also returns the Pod of the hypervisor that
// connected.
func (s Siblings) AcceptAny(ctx context.Context, raw net.Conn, protocol string) (conn *tls.Conn, pod string, err error) {
	conn, peer, err := s.Credentials.acceptAny(ctx, raw, s.peer("any"), protocol, func(got Peer) bool { return got == s.peer(got.Pod) })
	return conn, peer.Pod, err
}

// Connect calls Credentials.Connect for the hypervisor in a Pod.
func (s Siblings) Connect(ctx context.Context, raw net.Conn, pod, protocol string) (*tls.Conn, error) {
	return s.Credentials.Connect(ctx, raw, s.peer(pod), protocol)
}

// Caller returns the Pod of the caller of a gRPC method. It returns a status with code PERMISSION_DENIED if the
// caller is not a hypervisor of the VM, or an error of FromContext.
func (s Siblings) Caller(ctx context.Context) (pod string, err error) {
	caller, err := FromContext(ctx)
	if err != nil {
		return "", err
	}
	if caller != s.peer(caller.Pod) {
		return "", status.Errorf(codes.PermissionDenied, "%s is not a hypervisor of %s/%s", caller, s.Namespace, s.VM)
	}
	return caller.Pod, nil
}
