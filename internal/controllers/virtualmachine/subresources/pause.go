package subresources

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// pause requests that the guest's CPUs stop.
func (s *Server) pause(c call) error { return s.setMode(c, v1alpha1.ModePause, "pause") }

// unpause requests that the guest's CPUs continue.
func (s *Server) unpause(c call) error { return s.setMode(c, v1alpha1.ModeRun, "unpause") }

// setMode writes the desired mode to the VM's spec. The hypervisor learns of it by its run lease.
func (s *Server) setMode(c call, mode v1alpha1.VirtualMachineMode, verb string) error {
	if !c.vm.DeletionTimestamp.IsZero() {
		return c.conflict("virtual machine %s is being deleted", c.vm.Name)
	}
	if c.vm.Spec.Mode != mode {
		before := c.vm.DeepCopy()
		c.vm.Spec.Mode = mode
		if err := s.patch(c, before); err != nil {
			return err
		}
	}
	writeSuccess(c.w, verb+" of virtual machine "+c.vm.Name+" requested")
	return nil
}

// patch writes the changes of the VM. If the VM has changed since it was read, patch returns a conflict, and the
// client must retry.
func (s *Server) patch(c call, before client.Object) error {
	var options []client.PatchOption
	if c.dryRun {
		options = append(options, client.DryRunAll)
	}
	return s.Writer.Patch(c.r.Context(), c.vm, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), options...)
}
