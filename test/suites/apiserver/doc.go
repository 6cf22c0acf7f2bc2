// Package apiserver tests the behavior of a real API server with our API. The CRDs keep every field that MCM
// wrote and reject what cannot be read, the admission policies reject invalid objects, kubectl reaches the
// subresources of VirtualMachines, and "millwright rollout" shows and undoes rollouts.
package apiserver
