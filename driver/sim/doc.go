// Package sim changes when the behaviour of the simulated provider changes.
//
// It has two halves. A [Cloud] stands for the provider: it holds VMs, counts
// capacity, keeps a journal and carries out scripted mishaps. A [Driver] stands for
// the code that talks to it, and for the kubelets of its VMs: it creates Node
// objects in the target cluster. The halves are apart so that a controller can be
// restarted, or killed, and find the same VMs again: in one process by keeping the
// Cloud, across processes by keeping it in a directory ([OpenCloud]).
//
// # Provider specification
//
// All fields are optional. Durations are written as "1m30s". Unknown fields,
// apiVersion and kind excepted, are refused, and so are values out of range.
//
//	latency       duration  time that every call takes; 0s
//	joinDelay     duration  time from creation until the node appears; 0s
//	deleteDelay   duration  time for which a VM still exists after DeleteMachine; 0s
//	visibleAfter  duration  time for which a new VM is not found by name and not
//	                        listed, as at providers with lagging lists; 0s
//	jitter        number    0 to 1: each latency and joinDelay is shortened or
//	                        lengthened by up to this fraction; 0
//	join          string    ready (default), notReady (the node stays Ready=False),
//	                        flap (Ready changes every flapInterval) or never
//	flapInterval  duration  30s
//	pool          string    pool of the VM; namespace/name of the class
//	capacity      integer   number of VMs that the pool can hold; 0 is without limit
//	zone          string    zone of the VM: one that the cloud has (Cloud.SetZones), or
//	                        creation is answered with FailedPrecondition; none
//	tags          object    tags of the VM, text to text
//	nodeLabels    object    labels with which the node registers
//	nodeTaints    array     taints with which the node registers, as in a Node
//
// Pool and tags identify the cluster: a class only sees, lists and deletes VMs of
// its pool that carry all its tags. A VM of the wanted name with another pool or
// other tags is foreign: CreateMachine answers AlreadyExists. So it does where the VM is in
// another zone than the one that is wanted.
//
// The provider field of the class and the data of the Secret are not looked at.
//
// # Determinism
//
// What the simulation decides by chance (jitter, faults with a rate, the tail of
// provider IDs, addresses) is a hash of the seed and of names, not of the order of
// calls. So it is the same in every run, however calls interleave.
package sim
