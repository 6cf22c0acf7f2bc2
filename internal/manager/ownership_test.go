package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/test/support/coretest"
	"github.com/millwright-dev/millwright/test/support/env"
)

// pair is a Machine and a MillwrightMachine with the same name whose driver does not separate API groups.
type pair struct {
	*testing.T
	admin  client.Client
	driver *fake.Driver
	// made contains the provider IDs of all VMs that were created.
	made    []string
	infra   *infrav1.MillwrightMachine
	machine *v1alpha1.Machine
}

// newPair starts a manager and creates the objects that the two machines need, but neither machine.
func newPair(t *testing.T) *pair {
	t.Helper()
	e := env.New(t)
	coretest.Install(t, e.Admin)
	scheme := Scheme()
	core.AddToScheme(scheme, core.V1Beta2)
	admin, err := client.New(e.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{T: t, admin: admin}
	p.driver = fake.New(fake.Config{ProviderID: func(machine *v1alpha1.Machine, number int) string {
		p.made = append(p.made, fmt.Sprintf("fake:///%s/%d", machine.Name, number))
		return p.made[len(p.made)-1]
	}})
	for _, object := range ofBothAPIs(e.Namespace) {
		switch object := object.(type) {
		case *infrav1.MillwrightMachine:
			p.infra = object
		case *v1alpha1.Machine:
			p.machine = object
		default:
			p.create(object)
		}
	}
	p.machine.Name = p.infra.Name
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			Control: e.UserWith(t, "config/rbac/control-role.yaml", "config/rbac/capi-role.yaml"),
			Drivers: registry.Only("sim", p.driver),
			Log:     testr.New(t),
			Settings: Settings{
				Namespace:       e.Namespace,
				APIs:            []API{APIMCM, APICAPI},
				ConcurrentSyncs: 5,
				MachineSettings: MachineSettings{CreationTimeout: time.Minute},
			},
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the manager returned %v", err)
		}
	})
	return p
}

func (p *pair) create(object client.Object) {
	p.Helper()
	if err := p.admin.Create(p.Context(), object); err != nil {
		p.Fatal(err)
	}
}

// await reads an object until the check holds.
func (p *pair) await(object client.Object, holds func() bool) {
	p.Helper()
	gomega.NewWithT(p).Eventually(func(g gomega.Gomega) {
		g.Expect(p.admin.Get(p.Context(), client.ObjectKeyFromObject(object), object)).To(gomega.Succeed())
		g.Expect(holds()).To(gomega.BeTrue())
	}).WithTimeout(env.WaitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// end deletes an object and waits until it is gone.
func (p *pair) end(object client.Object) {
	p.Helper()
	if err := p.admin.Delete(p.Context(), object); err != nil {
		p.Fatal(err)
	}
	gomega.NewWithT(p).Eventually(func() bool {
		return apierrors.IsNotFound(p.admin.Get(p.Context(), client.ObjectKeyFromObject(object), object))
	}).WithTimeout(env.WaitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.BeTrue())
}

// wantVM checks that this VM exists and that no other VM was ever created.
func (p *pair) wantVM(providerID string) {
	p.Helper()
	vms := p.driver.VMs() // before made is read
	if !slices.Equal(p.made, []string{providerID}) || len(vms) != 1 {
		p.Errorf("VMs %v were created, %d are left; want %s only", p.made, len(vms), providerID)
	}
}

// TestOwnership_SameNameInBothAPIs checks two machines with the same name and a driver that does not separate API groups
// and therefore returns the VM of the first machine for the second. The second reports this and gets no VM, and
// its deletion leaves the VM alone. Then the first is deleted as usual.
func TestOwnership_SameNameInBothAPIs(t *testing.T) {
	t.Run("Machine is second", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		p.create(p.infra)
		p.await(p.infra, func() bool { return p.infra.Status.Ready })
		p.create(p.machine)
		p.await(p.machine, func() bool {
			last := p.machine.Status.LastOperation
			return p.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && strings.Contains(last.Description,
				"VM "+p.infra.Spec.ProviderID+" already belongs to MillwrightMachine "+client.ObjectKeyFromObject(p.infra).String())
		})
		if p.machine.Spec.ProviderID != "" {
			t.Errorf("it has VM %s", p.machine.Spec.ProviderID)
		}
		p.wantVM(p.infra.Spec.ProviderID)
		p.end(p.machine)
		p.wantVM(p.infra.Spec.ProviderID)
		p.end(p.infra)
		p.wantNoVM()
	})
	t.Run("MillwrightMachine is second", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		p.create(p.machine)
		p.await(p.machine, func() bool { return p.machine.Status.CurrentStatus.Phase == v1alpha1.MachineAvailable })
		p.create(p.infra)
		p.await(p.infra, func() bool {
			ready := meta.FindStatusCondition(p.infra.Status.Conditions, infrav1.ConditionReady)
			return ready != nil && ready.Reason == infrav1.ReasonProviderIDTaken &&
				strings.Contains(ready.Message, "VM "+p.machine.Spec.ProviderID+" already belongs to Machine "+client.ObjectKeyFromObject(p.machine).String())
		})
		p.wantVM(p.machine.Spec.ProviderID)
		p.end(p.infra)
		p.wantVM(p.machine.Spec.ProviderID)
		p.end(p.machine)
		p.wantNoVM()
	})
	t.Run("the ID is edited", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		p.create(p.infra)
		p.await(p.infra, func() bool { return p.infra.Status.Ready })
		p.machine.Name, p.machine.Spec.ProviderID = "thief", p.infra.Spec.ProviderID
		p.create(p.machine)
		p.await(p.machine, func() bool {
			return strings.Contains(p.machine.Status.LastOperation.Description, "already belongs to MillwrightMachine")
		})
		if err := p.admin.Delete(t.Context(), p.machine); err != nil {
			t.Fatal(err)
		}
		p.await(p.machine, func() bool {
			return strings.Contains(p.machine.Status.LastOperation.Description, "also belongs to MillwrightMachine")
		})
		p.wantVM(p.infra.Spec.ProviderID)
		before := p.machine.DeepCopy()
		p.machine.Spec.ProviderID = ""
		if err := p.admin.Patch(t.Context(), p.machine, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
		gomega.NewWithT(t).Eventually(func() bool {
			return apierrors.IsNotFound(p.admin.Get(t.Context(), client.ObjectKeyFromObject(before), p.machine))
		}).WithTimeout(env.WaitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.BeTrue())
		p.wantVM(p.infra.Spec.ProviderID)
	})
}

func (p *pair) wantNoVM() {
	p.Helper()
	if vms := p.driver.VMs(); len(vms) != 0 {
		p.Errorf("VMs %v are left", vms)
	}
}
