// Package recorder records whether the provider or the manager records the metrics of driver calls.
package recorder

// Provider is true if the provider records them. Otherwise the manager does.
var Provider bool
