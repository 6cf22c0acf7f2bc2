// Package chart tests the Helm chart, and that it matches the manifests for kustomize. It is a separate module,
// because the program does not need Helm.
package chart
