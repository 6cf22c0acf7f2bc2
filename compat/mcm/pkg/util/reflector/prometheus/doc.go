// Package prometheus replaces MCM's package that registers the metrics of reflectors. Providers import that package
// for this effect. client-go no longer sets these metrics, in MCM either.
package prometheus
