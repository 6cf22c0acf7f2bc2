// Package tracing tests the spans that the program sends to an OpenTelemetry collector.
package tracing
