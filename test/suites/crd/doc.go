// Package crd tests our CRDs on a real API server: it keeps every field that MCM wrote, refuses
// others, and serves the scale subresource.
package crd
