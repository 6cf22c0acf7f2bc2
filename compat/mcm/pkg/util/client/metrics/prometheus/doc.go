// Package prometheus replaces MCM's package that registers the metrics of requests to API servers. Providers import
// that package for this effect. Here every manager registers them itself, as rest_client_….
package prometheus
