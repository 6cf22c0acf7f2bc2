package manager

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestDriver_RegisteredLate checks that a Machine whose class no driver serves is left alone and reports the
// reason. It gets its VM when its driver registers, and its deletion waits while that driver is disconnected.
func TestDriver_RegisteredLate(t *testing.T) {
	e, ctx := env.New(t), t.Context()
	drivers := registry.New(registry.Options{})
	bystander := sim.NewCloud(sim.CloudOptions{})
	if _, err := drivers.Register("other", sim.New(sim.Config{Cloud: bystander})); err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- Run(run, Config{
			Control: e.UserWith(t, "config/rbac/control-role.yaml"),
			Drivers: drivers,
			Log:     testr.New(t),
			Settings: Settings{
				Namespace:       e.Namespace,
				ConcurrentSyncs: 5,
				MachineSettings: MachineSettings{CreationTimeout: time.Hour},
			},
		})
	}()
	objects := oneMachine(e.Namespace)
	for _, object := range objects {
		if err := e.Client.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	machine := objects[2].(*v1alpha1.Machine)
	g := gomega.NewWithT(t)
	look := func() (*v1alpha1.Machine, error) {
		found := &v1alpha1.Machine{}
		return found, e.Client.Get(ctx, client.ObjectKeyFromObject(machine), found)
	}
	describes := func(sentence string) func(*v1alpha1.Machine) bool {
		return func(m *v1alpha1.Machine) bool { return strings.Contains(m.Status.LastOperation.Description, sentence) }
	}
	const refusal = `MachineClass "one" is for driver "sim", but this manager has the driver "other"`
	g.Eventually(look).WithTimeout(env.WaitTimeout).Should(gomega.Satisfy(describes(refusal)))
	g.Eventually(func() (bool, error) {
		events := &corev1.EventList{}
		err := e.Client.List(ctx, events, client.InNamespace(e.Namespace))
		for _, event := range events.Items {
			if event.InvolvedObject.Name == machine.Name && strings.Contains(event.Message, refusal) {
				return true, err
			}
		}
		return false, err
	}).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())

	cloud := sim.NewCloud(sim.CloudOptions{})
	remove, err := drivers.Register("sim", sim.New(sim.Config{Cloud: cloud}))
	if err != nil {
		t.Fatal(err)
	}
	g.Eventually(look).WithTimeout(env.WaitTimeout).Should(gomega.Satisfy(func(m *v1alpha1.Machine) bool { return m.Spec.ProviderID != "" }))
	remove()
	if err := e.Client.Delete(ctx, machine); err != nil {
		t.Fatal(err)
	}
	g.Eventually(look).WithTimeout(env.WaitTimeout).Should(gomega.Satisfy(describes(refusal)))
	if _, err := drivers.Register("sim", sim.New(sim.Config{Cloud: cloud})); err != nil {
		t.Fatal(err)
	}
	g.Eventually(func() bool {
		_, err := look()
		return apierrors.IsNotFound(err)
	}).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())
	if entries, err := bystander.Journal(); err != nil || len(entries) != 0 {
		t.Errorf("the other driver was called: %v, %v", entries, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the manager returned %v", err)
	}
}
