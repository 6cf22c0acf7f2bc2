// Package recorder says who records the metrics of driver calls.
package recorder

// Provider reports that the provider does. Otherwise the manager does.
var Provider bool
