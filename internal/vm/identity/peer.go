package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	uriController = "millwright://controller"
	uriVM         = "millwright://vm/"
	maxNameLength = 253
)

// ErrNotAPeer means that a name or a certificate holds no valid Peer.
var ErrNotAPeer = errors.New("no identity of the virtual machine system")

// Peer is the identity of a process: of the hypervisor in one Pod of one VM, or of the
// controller. Peers can be compared by ==. The zero value is no identity.
type Peer struct {
	// Namespace is that of the VirtualMachine and of its Pod.
	Namespace string
	// VM is the name of the VirtualMachine.
	VM string
	// Pod is the name of the Pod in which the hypervisor runs.
	Pod string

	// controller is set by Controller only; the names above are empty then.
	controller bool
}

// Controller returns the identity of the VM controller, whichever process it runs in.
func Controller() Peer { return Peer{controller: true} }

// IsController reports whether p is the VM controller.
func (p Peer) IsController() bool { return p == Controller() }

// URI is the name of p in certificates: millwright://controller, or
// millwright://vm/NAMESPACE/VM/POD.
func (p Peer) URI() string {
	if p.controller {
		return uriController
	}
	return uriVM + p.Namespace + "/" + p.VM + "/" + p.Pod
}

// String is the URI.
func (p Peer) String() string { return p.URI() }

// ParseURI is the inverse of Peer.URI. Other spellings of a URI are refused, with
// ErrNotAPeer.
func ParseURI(uri string) (Peer, error) {
	if uri == uriController {
		return Controller(), nil
	}
	names := strings.Split(strings.TrimPrefix(uri, uriVM), "/")
	if !strings.HasPrefix(uri, uriVM) || len(names) != 3 {
		return Peer{}, fmt.Errorf("%w: %.300q", ErrNotAPeer, uri)
	}
	p := Peer{Namespace: names[0], VM: names[1], Pod: names[2]}
	return p, p.validate()
}

// objectName is the form of names of Kubernetes objects. It has no character that
// means something in a URI.
var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

func (p Peer) validate() error {
	if p.IsController() {
		return nil
	}
	for _, name := range []string{p.Namespace, p.VM, p.Pod} {
		if p.controller || len(name) > maxNameLength || !objectName.MatchString(name) {
			return fmt.Errorf("%w: %.300q", ErrNotAPeer, p.URI())
		}
	}
	return nil
}

// peerOf returns the identity in a certificate. It does not verify the certificate.
func peerOf(cert *x509.Certificate) (Peer, error) {
	if len(cert.URIs) != 1 {
		return Peer{}, fmt.Errorf("%w: a certificate with %d URIs", ErrNotAPeer, len(cert.URIs))
	}
	return ParseURI(cert.URIs[0].String())
}

// FromContext returns the identity of the caller, for handlers of a gRPC server. The error
// is a status of code UNAUTHENTICATED: the caller has no certificate, or does not use TLS.
func FromContext(ctx context.Context) (Peer, error) {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return Peer{}, errNoCertificate
	}
	info, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return Peer{}, errNoCertificate
	}
	p, err := peerOf(info.State.VerifiedChains[0][0])
	if err != nil {
		return Peer{}, status.Error(codes.Unauthenticated, err.Error())
	}
	return p, nil
}

var errNoCertificate = status.Error(codes.Unauthenticated, "a client certificate is required")

// RequireVM is nil if the caller is the hypervisor in that Pod of that VM. Otherwise it
// is a status of code PERMISSION_DENIED, or FromContext's error.
func RequireVM(ctx context.Context, namespace, vm, pod string) error {
	return require(ctx, Peer{Namespace: namespace, VM: vm, Pod: pod})
}

// RequireController is nil if the caller is the VM controller. Otherwise it is a status
// of code PERMISSION_DENIED, or FromContext's error.
func RequireController(ctx context.Context) error {
	return require(ctx, Controller())
}

func require(ctx context.Context, want Peer) error {
	caller, err := FromContext(ctx)
	if err != nil {
		return err
	}
	if caller != want {
		return status.Errorf(codes.PermissionDenied, "%s may not act for %s", caller, want)
	}
	return nil
}
