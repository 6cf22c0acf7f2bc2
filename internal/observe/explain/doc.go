// Package explain says why machines, sets and deployments are as they are: why a Machine is not
// Running, why it was replaced, what its deletion waits for; why a set or deployment does not have
// the Machines that it wants.
//
// It works from another process than the manager, with nothing but API access, and writes
// nothing. So it knows what objects and events say, and nothing that only a running
// manager remembers: docs/design/0010-explain.md lists what that leaves out.
//
//	explain  objects → facts    the only part that talks to an API server
//	machine  facts → report     pure; its table maps causes to sentences and advice
//	pool     the same for sets and deployments
//	report   report → text      pure
package explain
