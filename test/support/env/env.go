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

import (
	"cmp"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/go-logr/logr/testr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

// userAgent is the user agent of Admin and Client.
const userAgent = "millwright-test"

// Env contains the clusters of a test.
type Env struct {
	// Cluster is the control cluster, which contains the Machines.
	*Cluster
	// Target is the target cluster, which the nodes join. It is the control cluster unless the test uses NewPair.
	Target *Cluster
}

// Cluster is a test's share of a control plane.
type Cluster struct {
	// Namespace is the namespace of this test, with a default service account for Pods. It is deleted at the end
	// of the test. Without a controller manager, it stays in Terminating.
	Namespace string
	// Admin has all permissions and no client-side rate limit.
	Admin *rest.Config
	// Client uses Admin. It reads from the API server, not from a cache. Its shared scheme contains Kubernetes'
	// own kinds and machine.sapcloud.io/v1alpha1.
	Client client.Client
	// ControlPlane is shared with other tests of the package, and must not be stopped unless the test uses
	// WithOwn.
	ControlPlane *controlplane.ControlPlane
}

type options struct {
	target, controllerManager, scheduler, own, noWatchCache bool
	number                                                  int
	dir, egress                                             string
	advertise                                               netip.Addr
}

// Option changes what New provides.
type Option func(*options)

// WithControllerManager provides control planes that run kube-controller-manager
// with its default controllers.
func WithControllerManager() Option { return func(o *options) { o.controllerManager = true } }

// WithScheduler provides control planes that run kube-scheduler and kube-controller-manager.
func WithScheduler() Option {
	return func(o *options) { o.scheduler, o.controllerManager = true, true }
}

// WithOwn provides control planes that this test does not share, so that it may stop their components. They take
// about three seconds to start.
func WithOwn() Option { return func(o *options) { o.own = true } }

// WithDir is like WithOwn, with all files below the given directory. Use it for a file system that the test
// fills.
func WithDir(dir string) Option { return func(o *options) { o.own, o.dir = true, dir } }

// WithNodes is like WithOwn, with an API server that Pods reach at an address, through the Service "kubernetes", and that
// reaches nodes and Services by HTTP CONNECT at a Unix socket. The test forwards the connections. The path of the socket
// has at most 107 bytes.
func WithNodes(advertise netip.Addr, egress string) Option {
	return func(o *options) { o.own, o.advertise, o.egress = true, advertise, egress }
}

// WithoutWatchCache provides control planes whose API servers serve lists and watches from etcd. See Compact.
func WithoutWatchCache() Option { return func(o *options) { o.noWatchCache = true } }

// WithNumber provides further control planes, for tests of a package that would interfere with each other. Tests
// with the same number share a control plane.
func WithNumber(number int) Option { return func(o *options) { o.number = number } }

// NewPair is like New, with a second control plane as the target cluster.
func NewPair(t testing.TB, opts ...Option) *Env {
	t.Helper()
	return New(t, append(opts, func(o *options) { o.target = true })...)
}

// New provides a namespace in a control plane of kube-apiserver and etcd. It fails the test if that is not
// possible, and skips it with -short.
func New(t testing.TB, opts ...Option) *Env {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: this test needs a kube-apiserver")
	}
	if running == nil {
		t.Fatal("call env.Main from TestMain, so that the control planes are ended after the tests")
	}
	var o options
	for _, option := range opts {
		option(&o)
	}
	variants := []variant{{
		controllerManager: o.controllerManager, scheduler: o.scheduler, noWatchCache: o.noWatchCache, number: o.number,
		advertise: o.advertise, egress: o.egress,
	}}
	if o.target {
		target := variants[0]
		target.target = true
		variants = append(variants, target)
	}
	clusters := make([]*Cluster, len(variants))
	var group errgroup.Group
	for i, v := range variants {
		group.Go(func() (err error) {
			clusters[i], err = newCluster(t, v, o)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("preparing the test environment: %v", err)
	}
	return &Env{Cluster: clusters[0], Target: clusters[len(clusters)-1]}
}

func newCluster(t testing.TB, v variant, o options) (*Cluster, error) {
	get := running.get
	if o.own {
		get = func(v variant) (*controlplane.ControlPlane, error) { return startOwn(t, v, o.dir) }
	}
	cp, err := get(v)
	if err != nil {
		return nil, err
	}
	c := &Cluster{ControlPlane: cp, Admin: cp.RESTConfig()}
	c.Admin.UserAgent = userAgent
	if c.Client, err = client.New(c.Admin, client.Options{Scheme: ownScheme()}); err != nil {
		return nil, err
	}
	if err := delay(c.Admin); err != nil {
		return nil, err
	}
	return c, c.createNamespace(t, v, o.own)
}

// startOwn starts a control plane that stops at the end of the test, in a directory below the given one, or in a
// temporary directory if that is empty.
func startOwn(t testing.TB, v variant, below string) (*controlplane.ControlPlane, error) {
	dir, err := os.MkdirTemp(cmp.Or(below, running.dir), "own-"+v.String()+"-")
	if err != nil {
		return nil, err
	}
	log := stderrLogger()
	if tt, ok := t.(*testing.T); ok {
		log = testr.New(tt)
	}
	cp, err := start(dir, v, log)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := errors.Join(kill(cp), removeUnlessKept(dir)); err != nil {
			t.Errorf("ending control plane %s: %v", v, err)
		}
	})
	return cp, nil
}

// ownScheme is shared by all clients of this package, because creating a scheme takes milliseconds.
var ownScheme = sync.OnceValue(NewScheme)

// NewScheme returns a scheme with Kubernetes' own kinds and machine.sapcloud.io/v1alpha1.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // a duplicate kind is a mistake in this list
		}
	}
	return scheme
}
