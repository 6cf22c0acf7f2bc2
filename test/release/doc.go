// Package release tests what make release writes, with the real clusterctl: it renders
// the files, and installs the provider from them into a control plane.
//
// As in test/capi, a run is about one version of Cluster API, that MILLWRIGHT_CAPI names;
// without it, the newest.
package release
