// Package sim is a driver with simulated machines.
//
// Use it for tests of controllers, demonstrations and measurements with thousands of machines without a provider,
// and for scripted failures.
//
// A [Cloud] simulates the provider: it holds VMs, counts capacity, keeps a journal of all calls and effects, and
// injects faults. A [Driver] simulates the code that calls the provider, and the kubelets of the VMs: it creates
// Node objects in the target cluster. The VMs of a Cloud outlive its drivers. With [OpenCloud] they also outlive
// the process.
//
// # Provider specification
//
// All fields are optional. Durations are written as "1m30s". If a class has unknown fields other than apiVersion and kind, or
// values out of range, VMs cannot be created or updated. They are still found and deleted, unless the pool or the tags are
// invalid.
//
//	latency       duration  time that every call takes; 0s
//	joinDelay     duration  time from creation until the node appears; 0s
//	deleteDelay   duration  time for which a VM still exists after DeleteMachine; 0s
//	visibleAfter  duration  time for which a new VM is not found by name and not
//	                        listed, as with providers with eventual consistency; 0s
//	jitter        number    0 to 1: each latency and joinDelay is shortened or
//	                        lengthened by up to this fraction; 0
//	distribution  string    how each latency and joinDelay varies: within the jitter (default),
//	                        exponential (with that mean, at most ten times that), or longTail
//	                        (one in twenty takes ten times that)
//	join          string    ready (default), notReady (the node stays Ready=False),
//	                        flap (Ready changes every flapInterval) or never
//	flapInterval  duration  30s
//	agent         string    agent that updates the node in place: succeed, fail, silent (never
//	                        reports) or die (with its node); default: no agent
//	updateTime    duration  time that the agent takes; 5s
//	pool          string    pool of the VM; namespace/name of the class
//	capacity      integer   maximum number of VMs in the pool; 0 means no limit
//	zoneCapacity  integer   maximum number of VMs in the zone, from all pools; 0 means no limit
//	zone          string    zone of the VM. For a zone that the cloud does not have (see
//	                        Cloud.SetZones), calls return FailedPrecondition; none
//	tags          object    tags of the VM, strings by name
//	nodeLabels    object    labels with which the node registers
//	nodeTaints    array     taints with which the node registers, as in a Node
//	legacy        object    kind and spec of the class of a legacy kind from which this class was
//	                        migrated; ignored
//
// Two annotations of the class change the behavior of the provider at run time: sim.millwright.dev/faults is a JSON
// list of faults (method, machine, codes, message, times, rate, lostAnswer and hang, as in [Fault]; codes are
// names). The faults start again when the text changes. sim.millwright.dev/outage lists the zones that do not
// respond, separated by commas, or is "*".
//
// Pool, tags and the API group of the object that the class serves identify the owner of a VM: a class only finds,
// lists and deletes VMs of its pool and API group that have all its tags. A VM whose provider ID is stored is found
// regardless of the current pool and tags of the class. If a VM of the requested name belongs to another owner, or
// is in another zone, CreateMachine returns AlreadyExists.
//
// The key "account" of the Secret names the account. No call looks beyond this account. The default is "default". A
// location (driver.Locator) consists of an account and a pool. Other data of the Secret, and the provider field of
// the class, are ignored.
//
// # Determinism
//
// Random decisions (jitter, faults with a rate, the suffix of provider IDs, addresses) are hashes of the seed and
// of names. They do not depend on the order of calls, so they are the same in every run, even with concurrent
// calls.
package sim
