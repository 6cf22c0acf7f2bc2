// Package prometheus replaces MCM's package that registers the metrics of work queues. Providers import that
// package for this effect. Here every manager registers them itself, as mcm_workqueue_….
package prometheus
