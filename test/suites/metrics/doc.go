// Package metrics tests the list of all metrics: what the program exposes, what MCM does, and what the
// page about metrics says.
package metrics
