// Package driver changes when the contract between machine controllers and
// providers of machines changes.
//
// A driver makes, finds and removes the VMs (or physical machines) of one kind of
// provider. The controllers call it; it never calls them. To write one, implement
// [Driver] and as many of [Initializer], [VolumeIdentifier], [ClassMigrator] and
// [FailureDomains] as the provider can support.
//
// The contract is that of Gardener's Machine Controller Manager, and the words
// MUST, SHOULD and MAY are used below as RFC 2119 defines them. Rules that are
// marked "here" are not in that contract as a MUST; the controllers of this
// project rely on them.
//
// # Identity
//
//   - There MUST be a unique mapping from a Machine object to a VM, by the name of
//     the VM or by a tag. The key is the name of the Machine (with its namespace
//     where a driver serves several). It is never the object's UID: control planes
//     are backed up and restored, and then UIDs change.
//   - The provider specification SHOULD determine the cluster that a VM belongs to,
//     by a name prefix, tags or a resource group, so that VMs which are not managed
//     here are never touched. A driver SHALL act only on VMs of that cluster; here
//     this means that it deletes only instances that carry its own tags.
//   - ProviderID names one VM for ever. A VM made later for the same Machine name
//     has another ProviderID (here).
//
// # Requests
//
//   - The fields Machine, MachineClass and Secret are not copies: they may be
//     shared with the controller's caches. A driver MUST NOT modify them (here), nor
//     keep references to them after it has returned. The one exception is
//     [GenerateMachineClassForMigrationRequest], whose class is there to be filled.
//   - Secret holds the merged data of the class's two secret references. It has no
//     metadata. It is never nil, its Data may be. On creation its userData is
//     ready to be used: placeholders are already replaced.
//   - Machine may be synthetic. For an orphaned VM only its namespace, name and
//     spec.providerID are set; in Cluster API, labels and other fields differ from
//     those of a Machine of machine.sapcloud.io. Use no more of it than you need.
//   - Machine.Status.LastKnownState is what the driver last returned as
//     LastKnownState, or empty. It MAY be used to continue an operation.
//   - MachineClass.ProviderSpec MUST be checked by every method that gets it, for
//     mandatory parameters, tags and valid values.
//   - The context carries a deadline. A driver MUST return when it ends (here), with
//     Canceled or DeadlineExceeded, after it has cleaned up what it can.
//   - Methods are called concurrently, also for one and the same machine during a
//     change of leadership.
//
// # Errors
//
//   - Every error MUST carry a code of package codes; build them with package
//     status. An error without one is treated as Unknown. The message MUST be a
//     sentence for people. It is shown to users, so it MUST NOT contain secrets.
//   - With the exception of Uninitialized, the response that comes with an error
//     MAY be nil. If CreateMachine or DeleteMachine return a response next to an
//     error, its LastKnownState is stored.
//   - The codes of package codes say what a controller does about each. Each method
//     below lists those that it may return. Other codes are accepted, but nobody
//     promises a sensible reaction.
//
// # Logging
//
// The context carries a logr.Logger. A driver SHOULD NOT log anything sensitive.
package driver
