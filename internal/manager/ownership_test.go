package manager

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/test/coretest"
	"github.com/millwright-dev/millwright/test/env"
)

// blind is the simulated driver as those that know nothing of faces are.
type blind struct{ driver.Driver }

func (b blind) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	machine, class := faceless(req.Machine, req.MachineClass)
	return b.Driver.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: req.Secret})
}

func (b blind) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	machine, class := faceless(req.Machine, req.MachineClass)
	return b.Driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: machine, MachineClass: class, Secret: req.Secret})
}

func (b blind) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	machine, class := faceless(req.Machine, req.MachineClass)
	return b.Driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: machine, MachineClass: class, Secret: req.Secret})
}

func (b blind) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	_, class := faceless(&v1alpha1.Machine{}, req.MachineClass)
	return b.Driver.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: class, Secret: req.Secret})
}

func faceless(machine *v1alpha1.Machine, class *v1alpha1.MachineClass) (*v1alpha1.Machine, *v1alpha1.MachineClass) {
	machine, class = machine.DeepCopy(), class.DeepCopy()
	for _, object := range []*metav1.ObjectMeta{&machine.ObjectMeta, &class.ObjectMeta} {
		delete(object.Annotations, driver.AnnotationAPIGroup)
	}
	return machine, class
}

// pair is a Machine and a MillwrightMachine of one name, whose manager has a blind driver.
type pair struct {
	*testing.T
	admin   client.Client
	cloud   *sim.Cloud
	infra   *infrav1.MillwrightMachine
	machine *v1alpha1.Machine
}

// newPair declares all that the two need, but neither of them.
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
	p := &pair{T: t, admin: admin, cloud: sim.NewCloud(sim.CloudOptions{})}
	for _, object := range bothFaces(e.Namespace) {
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
			Control: e.UserWith(t, "config/rbac/control-role.yaml", "config/rbac/capi-role.yaml"), Namespace: e.Namespace,
			APIs: []API{APIMCM, APICAPI}, Driver: blind{sim.New(sim.Config{Cloud: p.cloud})}, DriverName: "sim",
			ConcurrentSyncs: 5, CreationTimeout: time.Minute, Log: testr.New(t),
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended with %v", err)
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

// await reads an object again and again until the check holds.
func (p *pair) await(object client.Object, holds func() bool) {
	p.Helper()
	gomega.NewWithT(p).Eventually(func(g gomega.Gomega) {
		g.Expect(p.admin.Get(p.Context(), client.ObjectKeyFromObject(object), object)).To(gomega.Succeed())
		g.Expect(holds()).To(gomega.BeTrue())
	}).WithTimeout(time.Minute).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// end deletes an object, and waits until it is gone.
func (p *pair) end(object client.Object) {
	p.Helper()
	if err := p.admin.Delete(p.Context(), object); err != nil {
		p.Fatal(err)
	}
	gomega.NewWithT(p).Eventually(func() bool {
		return apierrors.IsNotFound(p.admin.Get(p.Context(), client.ObjectKeyFromObject(object), object))
	}).WithTimeout(time.Minute).WithPolling(50 * time.Millisecond).Should(gomega.BeTrue())
}

// wantVM checks that this VM is there, and that there never was another.
func (p *pair) wantVM(providerID string) {
	p.Helper()
	entries, err := p.cloud.Journal()
	if err != nil {
		p.Fatal(err)
	}
	var made []string
	left := 0
	for _, history := range sim.Histories(entries) {
		made = append(made, history.ProviderIDs...)
		left += history.Left
	}
	if !slices.Equal(made, []string{providerID}) || left != 1 {
		p.Errorf("VMs %v were made, and %d are left; want %s only", made, left, providerID)
	}
}

// TestOneNameInBothFaces: a driver that ignores whose face it works for gives the second of two
// machines of one name the VM of the first. That one is told so, makes no other, and takes
// none along when it goes; then the first goes as ever.
func TestOneNameInBothFaces(t *testing.T) {
	t.Run("Machine is second", func(t *testing.T) {
		p := newPair(t)
		p.create(p.infra)
		p.await(p.infra, func() bool { return p.infra.Status.Ready })
		p.create(p.machine)
		p.await(p.machine, func() bool {
			last := p.machine.Status.LastOperation
			return p.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && strings.Contains(last.Description,
				"VM "+p.infra.Spec.ProviderID+" is that of MillwrightMachine "+client.ObjectKeyFromObject(p.infra).String()+" already")
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
		p := newPair(t)
		p.create(p.machine)
		p.await(p.machine, func() bool { return p.machine.Status.CurrentStatus.Phase == v1alpha1.MachineAvailable })
		p.create(p.infra)
		p.await(p.infra, func() bool {
			ready := meta.FindStatusCondition(p.infra.Status.Conditions, infrav1.ConditionReady)
			return ready != nil && ready.Reason == infrav1.ReasonProviderIDTaken &&
				strings.Contains(ready.Message, "VM "+p.machine.Spec.ProviderID+" is that of Machine "+client.ObjectKeyFromObject(p.machine).String()+" already")
		})
		p.wantVM(p.machine.Spec.ProviderID)
		p.end(p.infra)
		p.wantVM(p.machine.Spec.ProviderID)
		p.end(p.machine)
		p.wantNoVM()
	})
	t.Run("the ID is written by hand", func(t *testing.T) {
		p := newPair(t)
		p.create(p.infra)
		p.await(p.infra, func() bool { return p.infra.Status.Ready })
		p.machine.Name, p.machine.Spec.ProviderID = "thief", p.infra.Spec.ProviderID
		p.create(p.machine)
		p.await(p.machine, func() bool {
			return strings.Contains(p.machine.Status.LastOperation.Description, "is that of MillwrightMachine")
		})
		if err := p.admin.Delete(t.Context(), p.machine); err != nil {
			t.Fatal(err)
		}
		p.await(p.machine, func() bool {
			return strings.Contains(p.machine.Status.LastOperation.Description, "is also that of MillwrightMachine")
		})
		p.wantVM(p.infra.Spec.ProviderID)
		before := p.machine.DeepCopy()
		p.machine.Spec.ProviderID = ""
		if err := p.admin.Patch(t.Context(), p.machine, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
		gomega.NewWithT(t).Eventually(func() bool {
			return apierrors.IsNotFound(p.admin.Get(t.Context(), client.ObjectKeyFromObject(before), p.machine))
		}).WithTimeout(time.Minute).WithPolling(50 * time.Millisecond).Should(gomega.BeTrue())
		p.wantVM(p.infra.Spec.ProviderID)
	})
}

// wantNoVM checks that none is left.
func (p *pair) wantNoVM() {
	p.Helper()
	if vms, err := p.cloud.VMs(); err != nil || len(vms) != 0 {
		p.Errorf("VMs %v, %v", vms, err)
	}
}
