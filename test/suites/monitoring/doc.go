// Package monitoring checks the dashboard and the alert rules in config/monitoring. It is a separate module,
// because the program does not need Prometheus' parser and rule engine.
package monitoring
