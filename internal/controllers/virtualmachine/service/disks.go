package service

import (
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// reportServer stores a report of a VM's disk server. This process later connects to the endpoint in the report.
func (s *Service) reportServer(vm types.NamespacedName, report *vmpb.ReportStateRequest) (*vmpb.ReportStateResponse, error) {
	if serves := report.GetState() == vmpb.ReportStateRequest_STATE_RUNNING; !isAddress(report.GetEndpoint()) && (serves || report.GetEndpoint() != "") {
		return nil, errNoAddress
	}
	s.mu.Lock()
	last := s.servers[vm]
	changed := !proto.Equal(last, report) && !overtaken(report, last)
	if changed {
		s.servers[vm] = report
	}
	s.mu.Unlock()
	if changed && !onlyProgress(last, report) {
		s.Enqueue(vm, 0)
	}
	return &vmpb.ReportStateResponse{}, nil
}

// DiskServer returns the last report of a VM's disk server; nil if this process has none.
func (s *Service) DiskServer(vm *v1alpha1.VirtualMachine) *vmpb.ReportStateRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	report := s.servers[client.ObjectKeyFromObject(vm)]
	if report == nil || !authority.IsServer(&vm.Status, report.GetUs().GetPodName()) {
		return nil
	}
	return report
}

// diskServer returns where a hypervisor attaches the disks of its VM with a token. It returns nil if the token is 0,
// or if the disks are not open to the hypervisor yet.
func (s *Service) diskServer(vm types.NamespacedName, us *vmpb.HypervisorID, token uint64) *vmpb.DiskServer {
	if token == 0 || s.Disks == nil {
		return nil
	}
	return s.Disks(vm, us.GetPodName(), token)
}

// Volume returns the disks of a VM on its disk server, which must present the certificate of the Pod, and a function
// that closes the connection. It does not wait for the server.
func (s *Service) Volume(vm types.NamespacedName, pod, endpoint string) (storage.Volume, func(), error) {
	conn, err := s.dial(vm, pod, endpoint)
	if err != nil {
		return nil, nil, err
	}
	return storage.At(conn), func() { _ = conn.Close() }, nil
}
