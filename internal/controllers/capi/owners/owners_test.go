package owners

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
)

const (
	namespace = "ns"
	period    = 15 * time.Minute
)

// blind is a driver that does not tell faces apart, as those of others.
type blind struct{ driver.Driver }

func faceless[T metav1.Object](object T, copied T) T {
	copied.SetAnnotations(nil)
	return copied
}

func (b blind) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return b.Driver.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: faceless(req.MachineClass, req.MachineClass.DeepCopy()), Secret: req.Secret})
}

func (b blind) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return b.Driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{
		Machine: req.Machine, MachineClass: faceless(req.MachineClass, req.MachineClass.DeepCopy()), Secret: req.Secret,
	})
}

func (b blind) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return b.Driver.CreateMachine(ctx, &driver.CreateMachineRequest{
		Machine: req.Machine, MachineClass: faceless(req.MachineClass, req.MachineClass.DeepCopy()), Secret: req.Secret,
	})
}

// world is a cluster with objects of both faces, and a driver with their VMs.
type world struct {
	*testing.T
	client    client.WithWatch
	live      client.Client
	cloud     *sim.Cloud
	driver    driver.Driver
	clock     *testingclock.FakeClock
	events    *record.FakeRecorder
	collector *orphans.Collector
	// hidden are objects that may not be read from the API server.
	hidden func(client.ObjectList) bool
}

// faces says which faces the manager has.
type faces struct{ mcm, capi bool }

func newWorld(t *testing.T, tellsFaces bool) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme, infrav1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	core.AddToScheme(scheme, core.V1Beta2)
	w := &world{
		T: t, client: fake.NewClientBuilder().WithScheme(scheme).Build(), cloud: sim.NewCloud(sim.CloudOptions{}),
		clock: testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), events: record.NewFakeRecorder(100),
		hidden: func(client.ObjectList) bool { return false },
	}
	w.live = interceptor.NewClient(w.client, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if w.hidden(list) {
			return apierrors.NewForbidden(infrav1.Resource("x"), "", errors.New("no"))
		}
		return c.List(ctx, list, options...)
	}})
	w.driver = sim.New(sim.Config{Cloud: w.cloud})
	if !tellsFaces {
		w.driver = blind{w.driver}
	}
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: "small", Finalizers: []string{v1alpha1.FinalizerMCM, infrav1.ClassFinalizer}}}
	class.ProviderSpec = runtime.RawExtension{Raw: []byte(`{"pool":"p","tags":{"kubernetes.io/cluster/c":"1"}}`)}
	cluster := &core.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	template := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Labels: inCluster}}
	template.Spec.Template.Spec = infrav1.MillwrightMachineSpec{Driver: "sim", MachineClassRef: &infrav1.LocalReference{Name: "small"}}
	w.put(class, cluster, template)
	return w
}

var inCluster = map[string]string{core.LabelCluster: "c"}

// manage begins a process that has some faces.
func (w *world) manage(has faces) {
	machines := orphans.Machines{Live: w.live, Namespace: namespace}
	machines.Secret = func(context.Context, *v1alpha1.MachineClass) (*corev1.Secret, string, error) {
		return &corev1.Secret{}, "", nil
	}
	infrastructure := MillwrightMachines{Live: w.live, Namespace: namespace, Driver: "sim"}
	if has.mcm {
		machines.Cache = w.client
	}
	if has.capi {
		infrastructure.Cache = w.client
	}
	w.collector = orphans.New(orphans.Options{
		APIs: []orphans.API{machines, infrastructure}, Driver: w.driver, Period: period, Limit: orphans.Limit{Count: 100},
		Events: w.events, Clock: w.clock, Log: logr.Discard(),
	})
}

func (w *world) put(objects ...client.Object) {
	w.Helper()
	for _, object := range objects {
		object.SetNamespace(namespace)
		if err := w.client.Create(w.Context(), object); err != nil {
			w.Fatal(err)
		}
	}
}

// vm makes a VM of a face, and returns its ID.
func (w *world) vm(face, name string) string {
	w.Helper()
	class := &v1alpha1.MachineClass{}
	if err := w.client.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: "small"}, class); err != nil {
		w.Fatal(err)
	}
	class.Annotations = map[string]string{driver.AnnotationAPIGroup: face}
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	made, err := w.driver.CreateMachine(w.Context(), &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: &corev1.Secret{}})
	if err != nil {
		w.Fatal(err)
	}
	return made.ProviderID
}

// machine is one of MCM's API with its VM.
func (w *world) machine(name string) *v1alpha1.Machine {
	w.Helper()
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name}}
	machine.Spec = v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "small"}, ProviderID: w.vm("", name)}
	machine.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	w.put(machine)
	return machine
}

// infra is one of Cluster API's with its VM.
func (w *world) infra(name string) *infrav1.MillwrightMachine {
	w.Helper()
	infra := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: inCluster, Annotations: map[string]string{core.AnnotationClonedFrom: "t"}}}
	id := w.vm(driver.APIGroupClusterAPI, name)
	infra.Spec = infrav1.MillwrightMachineSpec{Driver: "sim", MachineClassRef: &infrav1.LocalReference{Name: "small"}, ProviderID: id}
	infra.Status.ProviderID = id
	w.put(infra)
	return infra
}

func (w *world) remove(object client.Object) {
	w.Helper()
	if err := w.client.Delete(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

// left makes three passes, and returns the machine names of the VMs that are left.
func (w *world) left() []string {
	w.Helper()
	for range 3 {
		w.clock.Step(period)
		if err := w.collector.Collect(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
	vms, err := w.cloud.VMs()
	if err != nil {
		w.Fatal(err)
	}
	var names []string
	for _, vm := range vms {
		names = append(names, vm.Machine)
	}
	slices.Sort(names)
	return names
}

func (w *world) wantLeft(when string, want ...string) {
	w.Helper()
	if diff := cmp.Diff(want, w.left()); diff != "" {
		w.Errorf("%s: VMs (-want +got):\n%s", when, diff)
	}
}

// said reports whether an event has these words.
func (w *world) said(words string) bool {
	for {
		select {
		case event := <-w.events.Events:
			if strings.Contains(event, words) {
				return true
			}
		default:
			return false
		}
	}
}

// TestNeitherFaceCollectsTheOthers: whichever faces the manager has, and whether or not the
// driver tells them apart, only what nobody owns goes.
func TestNeitherFaceCollectsTheOthers(t *testing.T) {
	for name, has := range map[string]faces{"both": {true, true}, "MCM only": {mcm: true}, "Cluster API only": {capi: true}} {
		for driver, tells := range map[string]bool{"a driver that tells them apart": true, "a driver that does not": false} {
			t.Run(name+", "+driver, func(t *testing.T) {
				w := newWorld(t, tells)
				w.manage(has)
				machine, infra := w.machine("mcm"), w.infra("capi")
				w.wantLeft("all are owned", "capi", "mcm")
				w.remove(machine)
				if tells && !has.mcm {
					w.wantLeft("a Machine is gone, and none of this manager's", "capi", "mcm")
				} else {
					w.wantLeft("a Machine is gone", "capi")
				}
				w.remove(infra)
				left := w.left()
				if tells && !has.capi {
					if !slices.Contains(left, "capi") {
						t.Errorf("the VM of the other face was collected; left: %v", left)
					}
				} else if slices.Contains(left, "capi") {
					t.Errorf("the VM of a MillwrightMachine that is gone stays")
				}
			})
		}
	}
}

// TestWhatMayNotBeRead: where the other face's objects may not be read, and a VM could be
// theirs, nothing is collected, and why is said.
func TestWhatMayNotBeRead(t *testing.T) {
	infras := func(list client.ObjectList) bool { _, ok := list.(*infrav1.MillwrightMachineList); return ok }
	machines := func(list client.ObjectList) bool { _, ok := list.(*v1alpha1.MachineList); return ok }
	for name, tc := range map[string]struct {
		has    faces
		hidden func(client.ObjectList) bool
		// tells and unused: the driver tells faces apart, and none but ours uses the class.
		tells, unused bool
		kept          bool
	}{
		"MillwrightMachines":                    {has: faces{mcm: true}, hidden: infras, kept: true},
		"Machines":                              {has: faces{capi: true}, hidden: machines, kept: true},
		"Machines, which use the class":         {has: faces{capi: true}, hidden: machines, tells: true, kept: true},
		"Machines, which seem not to":           {has: faces{capi: true}, hidden: machines, unused: true, kept: true},
		"MillwrightMachines, which cannot":      {has: faces{mcm: true}, hidden: infras, tells: true, unused: true},
		"Machines, which cannot":                {has: faces{capi: true}, hidden: machines, tells: true, unused: true},
		"MillwrightMachines, for which we work": {has: faces{true, true}, hidden: func(client.ObjectList) bool { return false }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.tells)
			w.manage(tc.has)
			w.hidden = tc.hidden
			w.machine("mcm")
			w.infra("capi")
			w.vm(map[bool]string{true: driver.APIGroupClusterAPI}[tc.has.capi], "lost")
			if tc.unused {
				class := &v1alpha1.MachineClass{}
				if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "small"}, class); err != nil {
					t.Fatal(err)
				}
				class.Finalizers = nil
				if err := w.client.Update(t.Context(), class); err != nil {
					t.Fatal(err)
				}
			}
			want := []string{"capi", "lost", "mcm"}
			if !tc.kept {
				want = []string{"capi", "mcm"}
			}
			w.wantLeft("hidden", want...)
			if said := w.said("may not be read"); said != tc.kept {
				t.Errorf("said = %t", said)
			}
		})
	}
}

// TestPaused (G4): while a cluster is paused, as in a move, none of its VMs is judged.
func TestPaused(t *testing.T) {
	w := newWorld(t, true)
	w.manage(faces{capi: true})
	w.vm(driver.APIGroupClusterAPI, "lost")
	cluster := &core.Cluster{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "c"}, cluster); err != nil {
		t.Fatal(err)
	}
	cluster.Spec.Paused = true
	if err := w.client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	w.wantLeft("paused", "lost")
	w.remove(cluster) // and now it is not here any more
	w.wantLeft("moved", "lost")
	w.put(&core.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}})
	w.wantLeft("back")
}

// TestUnderway: a machine that is being made, or came from another cluster, may adopt what
// has its name.
func TestUnderway(t *testing.T) {
	w := newWorld(t, true)
	w.manage(faces{capi: true})
	for name, change := range map[string]func(*infrav1.MillwrightMachine){
		"no-id":  func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID, m.Status.ProviderID = "", "" },
		"moved":  func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID, m.Status.ProviderID = "sim:///ns/moved/9-0", "" },
		"edited": func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "sim:///ns/edited/9-0" },
	} {
		infra := w.infra(name)
		change(infra)
		if err := w.client.Update(t.Context(), infra); err != nil {
			t.Fatal(err)
		}
	}
	w.wantLeft("underway", "edited", "moved", "no-id")
}

// TestClassesAreListedOnce, for what their machines and templates describe, in each failure
// domain.
func TestClassesAreListedOnce(t *testing.T) {
	w := newWorld(t, true)
	own := infrav1.MillwrightMachineSpec{Driver: "sim", ProviderSpec: &runtime.RawExtension{Raw: []byte(`{"pool":"own"}`)}}
	own.FailureDomains = []infrav1.Placement{{Name: "a"}, {Name: "b", ProviderSpec: &runtime.RawExtension{Raw: []byte(`{"pool":"b"}`)}}}
	template := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "own", Labels: inCluster}}
	template.Spec.Template.Spec = own
	other := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	other.Spec.Template.Spec = infrav1.MillwrightMachineSpec{Driver: "other", ProviderSpec: own.ProviderSpec}
	broken := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "broken"}}
	broken.Spec.Template.Spec = infrav1.MillwrightMachineSpec{Driver: "sim", ProviderSpec: own.ProviderSpec, CredentialsSecretRef: &infrav1.LocalReference{Name: "gone"}}
	w.put(template, other, broken)
	for _, name := range []string{"m1", "m2"} {
		machine := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: inCluster, Annotations: map[string]string{core.AnnotationClonedFrom: "own"}}, Spec: own}
		machine.Spec.FailureDomain = "b"
		w.put(machine)
	}
	face := MillwrightMachines{Cache: w.client, Live: w.client, Namespace: namespace, Driver: "sim"}
	classes, err := face.Classes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, class := range classes {
		if class.Skip != "" {
			got = append(got, class.Object.GetName()+": skipped")
			continue
		}
		got = append(got, class.Object.GetName()+": "+string(class.Class.ProviderSpec.Raw))
	}
	slices.Sort(got)
	want := []string{
		"broken: skipped", `own: {"pool":"b"}`, `own: {"pool":"own"}`, `own: {"pool":"own"}`, `small: {"pool":"p","tags":{"kubernetes.io/cluster/c":"1"}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
	owners, err := face.Owners(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, owner := range owners {
		if !slices.ContainsFunc(classes, func(class orphans.Class) bool { return class.Key == owner.Class }) {
			t.Errorf("machine %s is of no class", owner.Name)
		}
	}
}
