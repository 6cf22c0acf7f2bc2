package explain

import "github.com/millwright-dev/millwright/driver/codes"

// wayOut says how a deletion can end that the driver refuses, if nothing tells that there ever
// was a VM.
func (e *explainer) wayOut(f failure) {
	if e.Machine.Spec.ProviderID != "" || e.Target.Node != nil {
		return
	}
	switch f.code {
	case codes.InvalidArgument, codes.OutOfRange, codes.PermissionDenied, codes.FailedPrecondition, codes.Unauthenticated, codes.Unimplemented:
		e.advise("MachineClass %s can be corrected while the machine is being deleted, too: the deletion then goes on at once", e.className())
		e.advise("If no VM of it can exist, as where every creation was refused: kubectl -n %s patch %s %s --type=merge -p '{\"metadata\":{\"finalizers\":null}}'. A VM that exists nevertheless is removed as an orphan once the driver can read the class", e.Key.Namespace, machineResource, e.Key.Name)
	}
}
