// Package sim is a driver whose machines are simulated.
//
// It is for tests of controllers, demonstrations and measurements: thousands of machines
// without a provider, and scripted failures.
//
// A [Cloud] simulates the provider: it holds VMs, counts capacity, keeps a journal of
// all calls and effects, and injects faults. A [Driver] simulates the code that calls
// the provider, and the kubelets of the VMs: it creates Node objects in the target
// cluster. The VMs of a Cloud outlive its drivers, and with [OpenCloud] the process.
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
//	                        listed, as at providers with eventual consistency; 0s
//	jitter        number    0 to 1: each latency and joinDelay is shortened or
//	                        lengthened by up to this fraction; 0
//	distribution  string    how each latency and joinDelay varies: within the jitter (default),
//	                        exponential (with that mean, at most ten times that), or longTail
//	                        (one in twenty takes ten times that)
//	join          string    ready (default), notReady (the node stays Ready=False),
//	                        flap (Ready changes every flapInterval) or never
//	flapInterval  duration  30s
//	agent         string    who updates the node in place: succeed, fail, silent (it never
//	                        reports) or die (with its node); without one nobody does
//	updateTime    duration  time that the agent takes; 5s
//	pool          string    pool of the VM; namespace/name of the class
//	capacity      integer   number of VMs that the pool can hold; 0 is without limit
//	zoneCapacity  integer   number of VMs that the zone can hold, of all pools; 0 is without limit
//	zone          string    zone of the VM. A zone that the cloud does not have (see
//	                        Cloud.SetZones) is answered with FailedPrecondition; none
//	tags          object    tags of the VM, text to text
//	nodeLabels    object    labels with which the node registers
//	nodeTaints    array     taints with which the node registers, as in a Node
//	legacy        object    kind and spec of the class of a legacy kind that this one was
//	                        migrated from; ignored
//
// Two annotations of the class change what the provider does while it runs:
// sim.millwright.dev/faults, a JSON list of faults (method, machine, codes, message, times, rate,
// lostAnswer and hang, as in [Fault]; codes are names), which begin anew when the text changes, and
// sim.millwright.dev/outage, the zones that do not answer, separated by commas, or "*".
//
// Pool, tags and the API group of the object that the class serves say whose a VM is: a
// class only finds, lists and deletes VMs of its pool and API group that have all its
// tags. A VM whose provider ID is stored is found whatever pool and tags the class has now.
// If a VM of the requested name belongs to others, or is in another zone, CreateMachine
// answers AlreadyExists.
//
// The key account of the Secret names the account, which no call looks beyond; without it,
// that is "default". A location (driver.Locator) is an account and a pool. Other data of the
// Secret, and the provider field of the class, are ignored.
//
// # Determinism
//
// Random decisions (jitter, faults with a rate, the end of provider IDs, addresses) are
// hashes of the seed and of names, not of the order of calls. They are the same in every
// run, in whatever order concurrent calls happen.
package sim
