// Package explain says why things are as they are: of a Machine why it is not Running, why
// it was replaced, what holds its deletion up; of a set or deployment why it does not have
// the Machines that it wants. Each with since when, what comes next and what can be done.
//
// It works from another process than the manager, with nothing but API access, and writes
// nothing. So it knows what objects and events say, and nothing that only a running
// manager remembers: docs/design/0010-explain.md lists what that leaves out.
//
//	Gatherer.Gather   objects → Facts    the only part that talks to an API server
//	Explain           Facts → Report     pure
//	ExplainPool       the same for sets and deployments: GatherSet, GatherDeployment
//	Print             Report → text      pure
package explain
