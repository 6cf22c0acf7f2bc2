// Package apiserver tests what a real API server does with our API: the CRDs keep every field that MCM wrote and refuse what
// cannot be read, the admission policies refuse what cannot work, kubectl reaches the subresources of VirtualMachines, and
// "millwright rollout" shows and undoes rollouts.
package apiserver
