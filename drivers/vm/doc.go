// Package vm changes when the way in which machines become VirtualMachine objects
// changes.
//
// The driver runs no VM itself. For each machine it creates a VirtualMachine in the
// infrastructure cluster, which a VM controller there turns into a running VM, and a
// Secret of the same name with the machine's user data. The infrastructure cluster is
// the one that the kubeconfig in the class's Secret leads to, or else that of
// [Options.Client]. docs/driver-vm.md describes the provider specification and the error
// codes.
//
// # Identity
//
// The name of a VirtualMachine is derived from the installation and from the machine's
// namespace and name, so that a repeated creation meets the first one. What it was made
// for stands on the object in full as well ([AnnotationIdentity]). A VirtualMachine is
// ours only if both agree and it is of the cluster that the class names in its tags; any
// other is never listed, adopted or deleted.
//
// A provider ID is "millwright:///<namespace>/<uuid>". The UUID is drawn once, when the
// object is created, so that a VM made later under the same name has another ID.
//
// # Order of writes
//
// The Secret is written before the VirtualMachine: as soon as the VirtualMachine exists,
// GetMachineStatus finds it and nobody calls CreateMachine again, so nothing that the VM
// needs may be outstanding by then. The Secret gets its owner reference afterwards, and
// DeleteMachine removes it by name, in case it never did.
package vm
