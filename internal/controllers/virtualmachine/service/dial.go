package service

import (
	"errors"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/specialaddress"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// ErrNoReport means that a hypervisor has not reported its address yet.
var ErrNoReport = errors.New("the hypervisor has not reported to this VM controller yet")

// Dial returns a connection to the services of a VM's authoritative hypervisor, which must present the certificate of
// its Pod. It does not wait for the hypervisor. The caller must close the connection. If the address of the
// hypervisor is unknown, Dial returns ErrNoReport.
func (s *Service) Dial(vm *v1alpha1.VirtualMachine) (*grpc.ClientConn, error) {
	report := s.Report(vm)
	if !isAddress(report.GetEndpoint()) {
		return nil, ErrNoReport
	}
	return s.dial(client.ObjectKeyFromObject(vm), report.GetUs().GetPodName(), report.GetEndpoint())
}

// dial returns a connection to a process of a VM, which must present the certificate of the Pod. It does not wait for
// the process. The endpoint must be an address.
func (s *Service) dial(vm types.NamespacedName, pod, endpoint string) (*grpc.ClientConn, error) {
	return s.credentials().Dial("passthrough:///"+endpoint, identity.Peer{Namespace: vm.Namespace, VM: vm.Name, Pod: pod})
}

// isAddress reports whether an endpoint is an IP address with a port, at which a hypervisor may be. Other endpoints are
// refused: host names would be resolved, and a gRPC scheme could refer to a socket on this host. In local mode,
// hypervisors have loopback addresses.
func isAddress(endpoint string) bool {
	address, err := netip.ParseAddrPort(endpoint)
	return err == nil && (address.Addr().IsLoopback() || specialaddress.Kind(address.Addr()) == "")
}

// errNoAddress is the response to a report with an endpoint to which this process does not connect.
var errNoAddress = status.Error(codes.InvalidArgument, "the endpoint is not the IP address of a hypervisor with a port")
