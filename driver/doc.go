// Package driver is the interface between machine controllers and the providers of machines.
//
// A driver creates, finds and deletes the VMs (or physical machines) of one kind of provider. The controllers call
// the driver; it never calls them. To write a driver, implement [Driver], and any of [Initializer],
// [VolumeIdentifier], [ClassMigrator], [FailureDomains], [APIGroupSeparator], [Locator] and [Updater] that the
// provider can support.
//
// The contract is that of Gardener's Machine Controller Manager (MCM). MUST, SHOULD and MAY are used as in RFC
// 2119. Rules that are marked (Millwright) are not a MUST of MCM's contract; the controllers of this project rely
// on them.
//
// # Identity
//
//   - There MUST be a unique mapping from a Machine object to a VM, by the name of the VM or by a tag. The key is
//     the name of the Machine, and also its namespace if a driver serves several. It is never the object's UID:
//     UIDs change when a control plane is restored from a backup.
//   - The provider specification SHOULD determine the cluster of a VM, by a name prefix, tags or a resource group.
//     A driver SHALL act only on VMs of that cluster: it deletes only instances that have its own tags
//     (Millwright).
//   - A ProviderID identifies one VM and is never reused. A VM that is created later for the same Machine name has
//     another ProviderID (Millwright).
//
// # Requests
//
//   - The fields Machine, MachineClass and Secret may be shared with the controller's caches. A driver MUST NOT
//     modify them (Millwright), and MUST NOT keep references to them after it has returned. The only exception is
//     the class of [GenerateMachineClassForMigrationRequest], which the driver fills.
//   - Secret contains the merged data of the class's two secret references, and no metadata. It is never nil; its
//     Data may be. In a creation request, userData is complete: placeholders are replaced.
//   - Machine may be incomplete. For an orphaned VM, only its namespace, name and spec.providerID are set. For
//     Cluster API, labels and other fields differ from those of a Machine of machine.sapcloud.io. Use only the
//     fields that you need.
//   - Machine.Status.LastKnownState is the LastKnownState that the driver returned last, or empty. It MAY be used
//     to continue an operation.
//   - CreateMachine, InitializeMachine and UpdateMachine MUST validate the ProviderSpec: mandatory parameters, tags and
//     ranges. Other methods MUST validate the fields that identify VMs, such as the tags, and SHOULD accept unknown and
//     invalid values elsewhere (Millwright): a later version may have written them, and the Machines of a class must be
//     deleted even if no VM can be created from it.
//   - The context has a deadline. When the context is done, a driver MUST clean up what it can and return Canceled
//     or DeadlineExceeded (Millwright).
//   - Methods are called concurrently, and during a change of leadership even for the same machine.
//
// # Errors
//
//   - Every error MUST have a code of package codes; create it with package status. An error without a code counts
//     as Unknown. The message is shown to users: it MUST be a sentence, and MUST NOT contain secrets.
//   - The response next to an error MAY be nil, except for Uninitialized. If CreateMachine or DeleteMachine returns
//     both, LastKnownState is stored.
//   - Package codes documents how a controller reacts to each code. Each method below lists the codes that it may
//     return; the reaction to other codes is undefined.
//
// # Logging
//
// The context carries a logr.Logger. A driver SHOULD NOT log anything sensitive.
package driver
