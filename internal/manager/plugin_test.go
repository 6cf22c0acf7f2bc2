package manager

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/pluginserver"
	"github.com/millwright-dev/millwright/test/support/env"
)

// pluginSocket is the environment variable that makes this program serve a driver.
const pluginSocket = "MILLWRIGHT_TEST_PLUGIN"

// bePlugin serves the simulated driver as that of AWSMachineClasses.
func bePlugin(socket string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := plugin.Serve(ctx, sim.New(sim.Config{}), plugin.Options{
		Kind: "sim", Target: "unix://" + socket, Credentials: insecure.NewCredentials(), MigratedKinds: []string{legacy.AWS},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startPlugin starts the process and stops it at the end of the test.
func startPlugin(t *testing.T, socket string) {
	t.Helper()
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), pluginSocket+"="+socket)
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
}

// TestPlugIn_LateDriverMigratesClass checks that a class of a legacy kind is migrated when the driver for that kind registers,
// although another driver that would accept it is already present. The Machines of the class, and a Machine
// whose class names that driver, get their VMs then.
func TestPlugIn_LateDriverMigratesClass(t *testing.T) {
	e, ctx := env.New(t), t.Context()
	g := gomega.NewWithT(t)
	e.InstallCRDs(t, "config/crd/legacy")
	drivers := registry.New(registry.Options{MayGrow: true})
	bystander := sim.NewCloud(sim.CloudOptions{})
	if _, err := drivers.Register("a-sim", sim.New(sim.Config{Cloud: bystander})); err != nil {
		t.Fatal(err)
	}
	plugins := pluginserver.New(pluginserver.Options{Add: func(kind string, d *pluginserver.Driver) error {
		_, err := drivers.Register(kind, d)
		return err
	}})
	socket := filepath.Join(t.TempDir(), "s")
	endpoint, err := pluginserver.Socket(socket)
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(run, Config{
			Control:   e.UserWith(t, "config/rbac/control-role.yaml"),
			Drivers:   drivers,
			Runnables: []ctrlmanager.Runnable{ctrlmanager.RunnableFunc(func(ctx context.Context) error { return plugins.Serve(ctx, endpoint) })},
			Log:       testr.New(t),
			Settings: Settings{
				Namespace:       e.Namespace,
				ConcurrentSyncs: 5,
				MachineSettings: MachineSettings{CreationTimeout: time.Hour},
			},
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the manager returned %v", err)
		}
	})
	class, pool := legacyPool(e.Namespace)
	class.SetName("older")
	pool[1].(*v1alpha1.MachineDeployment).Spec.Template.Spec.Class.Name = "older"
	single := oneMachine(e.Namespace)
	for _, object := range append([]client.Object{class, pool[1]}, single...) {
		g.Expect(e.Client.Create(ctx, object)).To(gomega.Succeed())
	}
	machines := func() (all []v1alpha1.Machine, err error) {
		list := &v1alpha1.MachineList{}
		err = e.Client.List(ctx, list, client.InNamespace(e.Namespace))
		return list.Items, err
	}
	all := func(holds func(v1alpha1.Machine) bool) func() error {
		return func() error {
			found, err := machines()
			for _, machine := range found {
				if !holds(machine) {
					return fmt.Errorf("%s: %s", machine.Name, machine.Status.LastOperation.Description)
				}
			}
			if err == nil && len(found) != 3 {
				return fmt.Errorf("%d Machines", len(found))
			}
			return err
		}
	}
	g.Eventually(all(func(m v1alpha1.Machine) bool {
		return strings.Contains(m.Status.LastOperation.Description, `the driver "a-sim"`)
	})).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	startPlugin(t, socket)
	g.Eventually(all(func(m v1alpha1.Machine) bool {
		return m.Spec.ProviderID != "" && m.Spec.Class.Kind == v1alpha1.MachineClassKind
	})).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	old := &unstructured.Unstructured{}
	old.SetGroupVersionKind(class.GroupVersionKind())
	g.Eventually(func() (map[string]string, error) {
		err := e.Client.Get(ctx, client.ObjectKeyFromObject(class), old)
		return old.GetAnnotations(), err
	}).WithTimeout(env.WaitTimeout).Should(gomega.HaveKey(legacy.AnnotationMigrated))
	if entries, err := bystander.Journal(); err != nil || len(entries) != 0 {
		t.Errorf("the other driver was called: %v, %v", entries, err)
	}
}
