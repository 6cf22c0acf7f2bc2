// Package release tests what make release writes, with the real clusterctl: it renders
// the files, and installs the provider from them into a control plane.
//
// As in test/suites/capi, a run uses one version of Cluster API: that in MILLWRIGHT_CAPI, or else the
// newest.
package release
