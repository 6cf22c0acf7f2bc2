// Package prometheus has the place of MCM's package that registers the metrics of reflectors, which
// providers import for that effect. client-go does not fill them any more, in MCM neither.
package prometheus
