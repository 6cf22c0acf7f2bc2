// Package vm is a driver whose machines are VirtualMachine objects.
//
// For each machine it creates a VirtualMachine in the infrastructure cluster, for which the
// VM controller there runs a hypervisor, and a Secret of the same name with the machine's
// user data. The infrastructure cluster is that of the kubeconfig in the class's Secret, or
// else that of [Options.Client]. docs/driver-vm.md describes the provider specification and
// the error codes.
//
// # Identity
//
// The name of a VirtualMachine is derived from the installation and from the machine's API
// group, namespace and name, so a repeated creation finds the first one. The same is in an
// annotation in full ([AnnotationIdentity]). The driver lists, adopts and deletes a
// VirtualMachine only if name and annotation agree and it is of the cluster that the tags
// of the class name.
//
// A provider ID is "millwright:///<namespace>/<uuid>". The UUID is random and new for each
// object, so a VM that is created later under the same name has another ID.
//
// # Order of writes
//
// The Secret is written before the VirtualMachine: as soon as the VirtualMachine exists,
// GetMachineStatus finds it and CreateMachine is not called again, so everything that the
// VM needs must exist by then. The Secret gets its owner reference afterwards.
// DeleteMachine deletes it by name, in case it has none.
package vm
