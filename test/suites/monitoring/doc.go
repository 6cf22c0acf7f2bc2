// Package monitoring checks the dashboard and the alert rules in config/monitoring. It is a module of
// its own, for the program needs nothing of Prometheus' parser and rule engine.
package monitoring
