// Package metrics tests the list of all metrics against the program, MCM, and the page about metrics.
package metrics
