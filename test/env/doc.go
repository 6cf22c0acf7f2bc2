// Package env runs API servers for tests.
//
// A package whose tests need one calls Main from TestMain and New in each test:
//
//	func TestMain(m *testing.M) { env.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		e := env.New(t)
//		… e.Client, e.Namespace …
//	}
//
// The first New of a package starts a control plane of kube-apiserver and etcd,
// with this repository's CRDs; all tests of the package share it, each with a
// namespace of its own. It is ended when the package's tests are done. It runs no
// kube-controller-manager unless [WithControllerManager] asks for one: so nothing
// collects garbage, and namespaces stay in Terminating. Cluster-wide objects, Nodes
// above all, are shared by the tests of a package: give them names that contain the
// test's namespace.
//
// With -short, New skips the test.
//
// # Environment
//
//	KUBERNETES_BINARIES  folder with etcd, kube-apiserver, …; default: what `make
//	                     controlplane` built last
//	MILLWRIGHT_CACHE     cache folder of `make controlplane`; default "millwright" in
//	                     the user's cache folder
//	KEEP_CONTROL_PLANE   if set, folders of control planes (logs, data) are kept and named
package env
