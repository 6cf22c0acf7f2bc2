// Package instance brings one instance at a driver to the state that is declared.
//
// An Engine ensures that an instance exists, or that it is gone, and answers at once
// with what is known; the driver's calls run as tasks, and the engine wakes the
// caller when one has ended. It knows nothing of what it does this for: Machines and
// Cluster API's machines are both served by it.
//
// What the engine remembers (calls under way, the last answer, back-off) only delays
// work or keeps it from being done twice. Losing it costs time. When many failing
// calls come due at once, after a restart or because a shared Secret changed, all but
// the first few are spread over half a minute.
package instance
