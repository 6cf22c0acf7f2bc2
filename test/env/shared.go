package env

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

// variant tells the control planes of a package apart.
type variant struct {
	target            bool
	controllerManager bool
}

func (v variant) String() string {
	name := "control"
	if v.target {
		name = "target"
	}
	if v.controllerManager {
		name += "-with-controller-manager"
	}
	return name
}

// pool holds the control planes that the tests of one package share.
type pool struct {
	dir    string
	mu     sync.Mutex
	shared map[variant]func() (*controlplane.ControlPlane, error)
}

// running is the pool while Run runs.
var running *pool

// Main runs the tests of a package and ends the process with their result. It is
// what TestMain calls.
func Main(m *testing.M) { os.Exit(Run(m)) }

// AtATime says how many of a package's parallel tests run at a time, for tests that mostly
// wait: more than there are processors. To be called before the tests run; the flag -parallel
// counts more.
func AtATime(tests int) {
	if err := flag.Set("test.parallel", strconv.Itoa(tests)); err != nil {
		panic(err) // not a test
	}
}

// Run runs the tests of a package, ends the control planes that they started, and
// returns the exit status. It is for a TestMain that has more to do; others call Main.
func Run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "millwright-env-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "env:", err)
		return 1
	}
	running = &pool{dir: dir, shared: map[variant]func() (*controlplane.ControlPlane, error){}}
	code := m.Run()
	if err := running.end(); err != nil {
		fmt.Fprintln(os.Stderr, "env: ending the control planes:", err)
		code = max(code, 1)
	}
	return code
}

// get returns the shared control plane and starts it at its first use. Different
// variants start at the same time.
func (p *pool) get(v variant) (*controlplane.ControlPlane, error) {
	p.mu.Lock()
	start, ok := p.shared[v]
	if !ok {
		start = sync.OnceValues(func() (*controlplane.ControlPlane, error) {
			return startControlPlane(filepath.Join(p.dir, v.String()), v, stderrLogger())
		})
		p.shared[v] = start
	}
	p.mu.Unlock()
	return start()
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

// kill ends a control plane at once. An API server that ends in an orderly way takes up to
// five seconds, and there is nothing left that it could lose.
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

// startControlPlane starts one with the same flags as local mode has, apart from
// etcd's fsync, and installs the CRDs.
func startControlPlane(dir string, v variant, log logr.Logger) (*controlplane.ControlPlane, error) {
	without := []string{controlplane.Scheduler}
	if !v.controllerManager {
		without = append(without, controlplane.ControllerManager)
	}
	return start(controlplane.Config{Dir: dir, Name: v.String(), Without: without, Logger: log}, v)
}

// Start starts a control plane for a program that is no test, such as a benchmark:
// kube-apiserver and etcd with this repository's CRDs, as tests have them. Everything lies in
// dir. The caller stops it.
func Start(dir string, log logr.Logger) (*controlplane.ControlPlane, error) {
	without := []string{controlplane.Scheduler, controlplane.ControllerManager}
	return start(controlplane.Config{Dir: dir, Without: without, Logger: log}, variant{})
}

func start(config controlplane.Config, v variant) (*controlplane.ControlPlane, error) {
	var err error
	if config.Binaries, err = Binaries(); err != nil {
		return nil, err
	}
	config.UnsafeNoFsync = true
	cp, err := controlplane.Start(context.Background(), config)
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
	if err := installCRDs(admin); err != nil {
		return err
	}
	if v.target {
		return nil
	}
	// The API server holds back creates of a kind for two seconds after its CRD
	// was established. Have that behind us, or the first test would measure it.
	c, err := client.New(admin, client.Options{Scheme: NewScheme()})
	if err != nil {
		return err
	}
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "first"}}
	if err := c.Create(context.Background(), machine, client.DryRunAll); err != nil {
		return fmt.Errorf("trying to create a machine: %w", err)
	}
	return nil
}

// Binaries is the folder of the control plane's programs, kubectl among them.
func Binaries() (string, error) {
	if dir := os.Getenv("KUBERNETES_BINARIES"); dir != "" {
		return dir, nil // Start says what is missing
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	return controlplane.FindBinaries(cache)
}

// CacheDir is the folder in which hack/cache.sh keeps what is slow to build.
func CacheDir() (string, error) {
	if dir := os.Getenv("MILLWRIGHT_CACHE"); dir != "" {
		return dir, nil
	}
	userCache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding what was built: %w", err)
	}
	return filepath.Join(userCache, "millwright"), nil
}

func installCRDs(admin *rest.Config) error {
	entries, err := config.Files.ReadDir("crd")
	if err != nil {
		return err
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, entry := range entries {
		content, err := config.Files.ReadFile("crd/" + entry.Name())
		if err != nil {
			return err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(content, crd); err != nil {
			return fmt.Errorf("reading config/crd/%s: %w", entry.Name(), err)
		}
		crds = append(crds, crd)
	}
	_, err = envtest.InstallCRDs(admin, envtest.CRDInstallOptions{
		CRDs: crds, MaxTime: time.Minute, PollInterval: 50 * time.Millisecond,
	})
	if err != nil {
		return fmt.Errorf("installing the CRDs: %w", err)
	}
	return nil
}
