// Package chart tests the chart for Helm, and that it is the same as the manifests for kustomize. It is a
// module of its own, for the program needs nothing of Helm.
package chart
