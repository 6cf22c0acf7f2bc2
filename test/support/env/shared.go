package env

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

// variant distinguishes the control planes of a package.
type variant struct {
	target            bool
	controllerManager bool
	scheduler         bool
	noWatchCache      bool
	number            int
	advertise         netip.Addr
	egress            string
}

func (v variant) String() string {
	name := "control"
	if v.target {
		name = "target"
	}
	if v.controllerManager {
		name += "-with-controller-manager"
	}
	if v.scheduler {
		name += "-with-scheduler"
	}
	if v.noWatchCache {
		name += "-without-watch-cache"
	}
	if v.number > 0 {
		name += fmt.Sprintf("-%d", v.number)
	}
	return name
}

// pool contains the control planes that the tests of one package share.
type pool struct {
	dir    string
	mu     sync.Mutex
	shared map[variant]func() (*controlplane.ControlPlane, error)
}

// running is the pool while Main runs.
var running *pool

// AtATime sets how many of a package's parallel tests run concurrently, instead of Main's four. Tests with
// control planes mostly wait. Call it before the tests run. The flag -parallel takes precedence.
func AtATime(tests int) {
	if err := flag.Set(parallel, strconv.Itoa(tests)); err != nil {
		panic(err) // not a test binary
	}
}

const parallel = "test.parallel"

// fourAtATime calls AtATime(4) if nothing was set.
func fourAtATime() {
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == parallel })
	if !set {
		AtATime(4)
	}
}

// asking is the default polling interval of tests. Gomega's default of 10 ms would put more load on an API server
// than the controllers under test.
const asking = 50 * time.Millisecond

// Main runs the tests of a package, four at a time, stops the control planes that they started, and exits with
// the tests' result. TestMain calls it.
func Main(m *testing.M) {
	dir, err := os.MkdirTemp("", "millwright-env-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "env:", err)
		os.Exit(1)
	}
	fourAtATime()
	gomega.SetDefaultEventuallyPollingInterval(asking)
	running = &pool{dir: dir, shared: map[variant]func() (*controlplane.ControlPlane, error){}}
	code := m.Run()
	if err := running.end(); err != nil {
		fmt.Fprintln(os.Stderr, "env: ending the control planes:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// get returns the shared control plane, and starts it on first use. Different variants can start concurrently.
func (p *pool) get(v variant) (*controlplane.ControlPlane, error) {
	p.mu.Lock()
	started, ok := p.shared[v]
	if !ok {
		started = sync.OnceValues(func() (*controlplane.ControlPlane, error) {
			return start(filepath.Join(p.dir, v.String()), v, stderrLogger())
		})
		p.shared[v] = started
	}
	p.mu.Unlock()
	return started()
}

func (p *pool) end() error {
	var problems []error
	for _, started := range p.shared {
		if cp, err := started(); err == nil {
			problems = append(problems, kill(cp))
		}
	}
	return errors.Join(append(problems, removeUnlessKept(p.dir))...)
}

// kill kills a control plane. A graceful shutdown of an API server takes up to five seconds, and there is nothing
// left to lose.
func kill(cp *controlplane.ControlPlane) error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	return cp.Stop(now)
}

func removeUnlessKept(dir string) error {
	if os.Getenv("KEEP_CONTROL_PLANE") != "" {
		fmt.Fprintln(os.Stderr, "env: kept", dir)
		return nil
	}
	return os.RemoveAll(dir)
}

func stderrLogger() logr.Logger {
	return funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{})
}

// Start starts a control plane for a program that is not a test, such as a benchmark. It consists of
// kube-apiserver and etcd with this repository's CRDs, as for tests. All files are in dir. The caller stops it.
func Start(dir string, log logr.Logger) (*controlplane.ControlPlane, error) {
	return start(dir, variant{}, log)
}

// start starts a control plane with the flags of local mode, except for etcd's fsync, and installs the CRDs.
func start(dir string, v variant, log logr.Logger) (*controlplane.ControlPlane, error) {
	binaries, err := Binaries()
	if err != nil {
		return nil, err
	}
	var without []string
	if !v.scheduler {
		without = append(without, controlplane.Scheduler)
	}
	if !v.controllerManager {
		without = append(without, controlplane.ControllerManager)
	}
	cp, err := controlplane.Start(context.Background(), controlplane.Config{
		Dir: dir, Name: v.String(), Binaries: binaries, Without: without, NoWatchCache: v.noWatchCache, UnsafeNoFsync: true, Logger: log,
		AdvertiseAddress: v.advertise, EgressSocket: v.egress,
	})
	if err != nil {
		return nil, err
	}
	if err := prepareControlPlane(cp, v); err != nil {
		return nil, errors.Join(err, cp.Stop(context.Background()))
	}
	return cp, nil
}

func prepareControlPlane(cp *controlplane.ControlPlane, v variant) error {
	admin := cp.RESTConfig()
	crds, err := fs.Sub(config.Files, "crd")
	if err != nil {
		return err
	}
	if err := controlplane.InstallCRDs(context.Background(), admin, crds); err != nil {
		return err
	}
	if v.target {
		return nil
	}
	// The API server delays creates of a kind for two seconds after its CRD was established. Wait for that here,
	// so that the first test does not measure it.
	c, err := client.New(admin, client.Options{Scheme: ownScheme()})
	if err != nil {
		return err
	}
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "first"}}
	if err := c.Create(context.Background(), machine, client.DryRunAll); err != nil {
		return fmt.Errorf("trying to create a machine: %w", err)
	}
	return nil
}

// Binaries returns the directory of the control plane's programs, which include kubectl.
func Binaries() (string, error) {
	if dir := os.Getenv("KUBERNETES_BINARIES"); dir != "" {
		return dir, nil // Start reports what is missing
	}
	cache, err := localdir.Cache()
	if err != nil {
		return "", err
	}
	return controlplane.FindBinaries(cache)
}
