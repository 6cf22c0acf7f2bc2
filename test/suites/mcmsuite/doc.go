// Package mcmsuite contains the specifications of MCM's integration suite. They run against the two processes
// that replace MCM, with MCM's flags and defaults.
package mcmsuite
