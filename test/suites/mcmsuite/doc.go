// Package mcmsuite has the specifications of MCM's integration suite, which run against the two
// processes that take MCM's place, with MCM's flags and defaults.
package mcmsuite
