// Package ui tests "millwright ui" in a browser, with a real API server, manager and simulated machines.
package ui
