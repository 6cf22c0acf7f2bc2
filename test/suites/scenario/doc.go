// Package scenario plays what operators do and what goes wrong with the whole program,
// on simulated machines, against real API servers.
package scenario
