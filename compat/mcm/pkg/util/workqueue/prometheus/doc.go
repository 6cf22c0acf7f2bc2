// Package prometheus has the place of MCM's package that registers the metrics of work queues, which
// providers import for that effect. Here every manager registers them itself, as mcm_workqueue_….
package prometheus
