// Package scenario tests the operations of users, and failures, with the whole program, simulated machines and
// real API servers.
package scenario
