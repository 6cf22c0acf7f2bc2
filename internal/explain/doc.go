// Package explain says of one Machine why it is as it is: why it is not Running, why it
// was replaced, what holds its deletion up, each with since when, what comes next and
// what can be done.
//
// It works from another process than the manager, with nothing but API access, and writes
// nothing. So it knows what objects and events say, and nothing that only a running
// manager remembers: docs/design/0010-explain.md lists what that leaves out.
//
//	Gatherer.Gather   objects → Facts    the only part that talks to an API server
//	Explain           Facts → Report     pure
//	Print             Report → text      pure
package explain
