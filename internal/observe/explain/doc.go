// Package explain says why machines, sets and deployments are as they are: why a Machine is not
// Running, why it was replaced, what its deletion waits for; why a set or deployment does not have
// the Machines that it wants.
//
// It is pure: gather reads the facts, this package makes findings of them, whose words are the
// tables in words.go, and report prints them. It knows what objects and events say, and nothing that
// only a running manager remembers: docs/design/0010-explain.md lists what that leaves out.
package explain
