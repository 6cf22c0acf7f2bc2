package service

import (
	"errors"
	"net/netip"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// ErrNoReport means that a hypervisor has not said yet where it is.
var ErrNoReport = errors.New("the hypervisor has not reported to this VM controller yet")

// Dial returns a connection to the services of a VM's authoritative hypervisor, which must have the certificate of
// that Pod. It does not wait for the hypervisor. The caller closes it. Errors: ErrNoReport.
func (s *Service) Dial(vm *v1alpha1.VirtualMachine) (*grpc.ClientConn, error) {
	report := s.Report(vm)
	// Names would be resolved, and a scheme of gRPC can lead to a socket of this host.
	if _, err := netip.ParseAddrPort(report.GetEndpoint()); err != nil {
		return nil, ErrNoReport
	}
	peer := identity.Peer{Namespace: vm.Namespace, VM: vm.Name, Pod: report.GetUs().GetPodName()}
	return s.credentials().Dial("passthrough:///"+report.GetEndpoint(), peer)
}
