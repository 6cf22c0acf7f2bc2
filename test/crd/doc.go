// Package crd changes with what a real API server has to do with our CRDs: keep every
// field that MCM wrote, refuse others, and serve the scale subresource.
package crd
