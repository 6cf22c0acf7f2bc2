// Package prometheus has the place of MCM's package that registers the metrics of requests to API servers,
// which providers import for that effect. Here every manager registers them itself, as rest_client_….
package prometheus
