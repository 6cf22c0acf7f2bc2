package capi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// TestCreation: a VM is made, and both contracts hear of it, the ID before all else.
func TestCreation(t *testing.T) {
	w := newWorld(t)
	w.settle()
	got := w.infra()
	want := infrav1.MillwrightMachineStatus{
		Ready: true, Initialization: &infrav1.Initialization{Provisioned: new(true)}, ProviderID: "test:///vm-1", LastKnownState: "note",
		Addresses: []infrav1.MachineAddress{{Type: corev1.NodeHostName, Address: "host"}, {Type: corev1.NodeInternalIP, Address: "10.1.2.3"}},
	}
	conditions := got.Status.Conditions
	got.Status.Conditions = nil
	if diff := cmp.Diff(want, got.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if len(conditions) != 3 {
		t.Errorf("conditions %v", conditions)
	}
	if got.Spec.ProviderID != "test:///vm-1" || got.Spec.FailureDomain != "" {
		t.Errorf("provider ID %q, failure domain %q", got.Spec.ProviderID, got.Spec.FailureDomain)
	}
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	w.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionFalse, infrav1.ReasonWaitingForNode)
	w.wantCondition(infrav1.ConditionPaused, metav1.ConditionFalse, infrav1.ReasonNotPaused)
	wantWrites := []string{"patch", "patch", "patch status", "patch", "patch status"}
	if diff := cmp.Diff(wantWrites, w.writes); diff != "" {
		t.Errorf("finalizer, mark, waiting, ID, ready (-want +got):\n%s", diff)
	}

	w.writes = nil
	w.settle()
	w.restart()
	w.settleAfter(time.Minute)
	if len(w.writes) != 0 {
		t.Errorf("writes without a change: %v", w.writes)
	}
}

// TestGates: before its time nothing happens, and what is waited for is said.
func TestGates(t *testing.T) {
	for name, tc := range map[string]struct {
		rule, reason string
		given        func(*given)
		// open is what lets it go on.
		open func(*world)
		// untouched tells that not even a finalizer may be there.
		untouched bool
	}{
		"no owner": {
			rule: "S24", given: func(g *given) { g.infra.OwnerReferences = nil }, untouched: true,
			open: func(w *world) {
				w.changeInfra(func(m *infrav1.MillwrightMachine) {
					m.OwnerReferences = newGiven("", w.clock.Now()).infra.OwnerReferences
				})
			},
		},
		"an owner that is none of Cluster API's": {
			rule: "S24", given: func(g *given) { g.infra.OwnerReferences[0].APIVersion = v1beta1OfOthers }, untouched: true,
			open: func(w *world) {
				w.changeInfra(func(m *infrav1.MillwrightMachine) { m.OwnerReferences[0].APIVersion = core.V1Beta1.String() })
			},
		},
		"the owner does not exist": {
			rule: "S24", given: func(g *given) { g.machine = nil }, untouched: true,
			open: func(w *world) { w.create(newGiven(w.namespace, w.clock.Now()).machine) },
		},
		"no cluster": {
			rule: "S26", reason: infrav1.ReasonWaitingForCluster, given: func(g *given) { g.cluster = nil },
			open: func(w *world) { w.create(newGiven(w.namespace, w.clock.Now()).cluster) }, untouched: true,
		},
		"no infrastructure": {
			rule: "S28", reason: infrav1.ReasonWaitingForClusterInfrastructure,
			given: func(g *given) { g.cluster.Status = core.ClusterStatus{} },
			open:  func(w *world) { w.changeCluster(func(c *core.Cluster) { c.Status.InfrastructureReady = true }) },
		},
		"no bootstrap data": {
			rule: "S31", reason: infrav1.ReasonWaitingForBootstrapData,
			given: func(g *given) { g.machine.Spec.Bootstrap.DataSecretName = nil },
			open: func(w *world) {
				w.changeMachine(func(m *core.Machine) { m.Spec.Bootstrap.DataSecretName = new(bootstrapName) })
			},
		},
		"paused cluster": {
			rule: "G1, G2", given: func(g *given) { g.cluster.Spec.Paused = true }, untouched: true,
			open: func(w *world) { w.changeCluster(func(c *core.Cluster) { c.Spec.Paused = false }) },
		},
		"paused object": {
			rule: "G1, G2", given: func(g *given) { g.infra.Annotations = map[string]string{core.AnnotationPaused: "false"} }, untouched: true,
			open: func(w *world) { w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Annotations = nil }) },
		},
		"moved away": {
			rule: "K8", given: func(g *given) { g.infra.Annotations = map[string]string{core.AnnotationMoved: ""} }, untouched: true,
			open: func(w *world) { w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Annotations = nil }) },
		},
		"another manager's": {
			rule: "M14", given: func(g *given) { g.infra.Labels[core.LabelWatchFilter] = "theirs" }, untouched: true,
			open: func(w *world) {
				w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Labels[core.LabelWatchFilter] = "ours" })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(g *given) { g.infra.Labels[core.LabelWatchFilter] = "ours" }, tc.given)
			w.controller.WatchFilter = "ours"
			if result := w.settle(); result.RequeueAfter != 0 {
				t.Errorf("%s: looks again after %v, although an event will come", tc.rule, result.RequeueAfter)
			}
			got := w.infra()
			if len(w.driver.calls) != 0 || got.Spec.ProviderID != "" || got.Status.Ready {
				t.Errorf("%s: the driver was asked: %v", tc.rule, w.driver.calls)
			}
			if held := len(got.Finalizers) != 0; held == tc.untouched {
				t.Errorf("%s: finalizers %v", tc.rule, got.Finalizers)
			}
			if tc.reason != "" {
				w.wantReady(metav1.ConditionFalse, tc.reason)
			}
			tc.open(w)
			w.settle()
			w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
		})
	}
}

const v1beta1OfOthers = "machine.sapcloud.io/v1alpha1"

// TestNothingIsWrittenBeforeThereIsAnOwner (S24), nor by another manager.
func TestNothingIsWrittenBeforeThereIsAnOwner(t *testing.T) {
	w := newWorld(t, func(g *given) { g.infra.OwnerReferences = nil })
	before := w.infra()
	w.settle()
	w.wantNothing(before)
}

// TestFailedForGood (S25): one that has failed is left alone, until it is deleted.
func TestFailedForGood(t *testing.T) {
	for name, change := range map[string]func(*infrav1.MillwrightMachine){
		"reason":  func(m *infrav1.MillwrightMachine) { m.Status.FailureReason = new("CreateError") },
		"message": func(m *infrav1.MillwrightMachine) { m.Status.FailureMessage = new("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(g *given) {
				change(g.infra)
				g.infra.Finalizers = []string{infrav1.Finalizer}
				g.infra.Status.Conditions = []metav1.Condition{{Type: infrav1.ConditionPaused, Status: metav1.ConditionFalse, Reason: infrav1.ReasonNotPaused}}
			})
			before := w.infra()
			w.settle()
			w.wantNothing(before)
			w.changeCluster(func(c *core.Cluster) { c.Spec.Paused = true })
			w.settle()
			w.wantCondition(infrav1.ConditionPaused, metav1.ConditionTrue, infrav1.ReasonPaused) // G3
			w.changeCluster(func(c *core.Cluster) { c.Spec.Paused = false })
			w.settle()
			w.wantCondition(infrav1.ConditionPaused, metav1.ConditionFalse, infrav1.ReasonNotPaused)
			w.delete()
			w.settle()
			if !w.gone() {
				t.Error("it stays")
			}
		})
	}
}

// TestReadyIsALatch (S47): nothing that comes later takes it back.
func TestReadyIsALatch(t *testing.T) {
	for name, change := range map[string]func(*world){
		"cluster loses its infrastructure": func(w *world) { w.changeCluster(func(c *core.Cluster) { c.Status = core.ClusterStatus{} }) },
		"cluster vanishes":                 func(w *world) { w.remove(&core.Cluster{ObjectMeta: metav1.ObjectMeta{Name: clusterName}}) },
		"bootstrap data vanish": func(w *world) {
			w.changeMachine(func(m *core.Machine) { m.Spec.Bootstrap.DataSecretName = nil })
		},
		"its spec changes": func(w *world) {
			w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderSpec, m.Spec.Driver = raw(`{"size":"x"}`), "other" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.settle()
			calls := len(w.driver.calls)
			change(w)
			w.settle()
			w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			if got := w.infra().Status; !got.Ready || !*got.Initialization.Provisioned || len(w.driver.calls) != calls {
				t.Errorf("status %+v; %d calls", got, len(w.driver.calls)-calls)
			}
		})
	}
}

// TestBootstrapDataArePassedUnchanged (B1): byte by byte, with their format, and only when
// the VM is made.
func TestBootstrapDataArePassedUnchanged(t *testing.T) {
	for _, format := range []string{"", "cloud-config", "ignition"} {
		t.Run("format "+format, func(t *testing.T) {
			w := newWorld(t, func(g *given) {
				if format != "" {
					g.bootstrap.Data[core.BootstrapFormat] = []byte(format)
				}
				g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
				g.more = append(g.more, secret(g.infra.Namespace, "cloud", map[string]string{"token": "t", "userData": "not this", "userDataFormat": "nor this"}))
			})
			w.settle()
			want := map[string][]byte{"token": []byte("t"), "userData": []byte(bootstrapData)}
			if format != "" {
				want["userDataFormat"] = []byte(format)
			}
			if diff := cmp.Diff(want, w.driver.created[0].Secret.Data); diff != "" {
				t.Errorf("Secret of the creation (-want +got):\n%s", diff)
			}
			w.delete()
			w.settle()
			if diff := cmp.Diff(map[string][]byte{"token": []byte("t")}, w.driver.deleted[0].Secret.Data); diff != "" {
				t.Errorf("Secret of the deletion (-want +got):\n%s", diff)
			}
		})
	}
}

func secret(namespace, name string, data map[string]string) *corev1.Secret {
	made := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{}}
	for key, value := range data {
		made.Data[key] = []byte(value)
	}
	return made
}

// TestBootstrapSecretComesLate: it is waited for, however long that takes.
func TestBootstrapSecretComesLate(t *testing.T) {
	w := newWorld(t, func(g *given) { g.bootstrap.Data = nil })
	w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonWaitingForBootstrapData, `no data under "value"`)
	w.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bootstrapName}})
	w.settleAfter(time.Hour)
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonWaitingForBootstrapData, bootstrapName, "does not exist")
	if n := w.driver.made(instance.MethodCreate); n != 0 {
		t.Errorf("%d creations without bootstrap data", n)
	}
	w.create(newGiven(w.namespace, w.clock.Now()).bootstrap)
	w.settleAfter(time.Hour)
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
}

// TestFailures: which failures are for good (S33, §3a 5), and that the others are tried
// again until they pass.
func TestFailures(t *testing.T) {
	withClass := func(g *given) {
		g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
		g.more = append(g.more, newClass(g.infra.Namespace))
	}
	withSecret := func(g *given) {
		g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
		g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
	}
	cloned := func(g *given) { g.infra.Annotations = map[string]string{core.AnnotationClonedFrom: "workers"} }
	asItIs := func(*given) {}
	for name, tc := range map[string]struct {
		given  func(*given)
		method instance.Method
		code   codes.Code
		reason string
		final  bool
	}{
		"own spec":                      {asItIs, instance.MethodStatus, codes.InvalidArgument, infrav1.ReasonInvalidSpec, true},
		"a template's spec":             {cloned, instance.MethodStatus, codes.InvalidArgument, infrav1.ReasonInvalidSpec, false},
		"perhaps the bootstrap data":    {asItIs, instance.MethodCreate, codes.InvalidArgument, infrav1.ReasonInvalidSpec, false},
		"perhaps the data's size":       {asItIs, instance.MethodCreate, codes.OutOfRange, infrav1.ReasonInvalidSpec, false},
		"several VMs":                   {asItIs, instance.MethodStatus, codes.OutOfRange, infrav1.ReasonCreationFailed, false},
		"the class's spec":              {withClass, instance.MethodCreate, codes.InvalidArgument, infrav1.ReasonInvalidSpec, false},
		"the class's size":              {withClass, instance.MethodCreate, codes.OutOfRange, infrav1.ReasonInvalidSpec, false},
		"perhaps the credentials":       {withSecret, instance.MethodCreate, codes.InvalidArgument, infrav1.ReasonInvalidSpec, false},
		"capacity":                      {asItIs, instance.MethodCreate, codes.ResourceExhausted, infrav1.ReasonInsufficientCapacity, false},
		"name taken":                    {asItIs, instance.MethodCreate, codes.AlreadyExists, infrav1.ReasonCreationFailed, false},
		"no rights":                     {asItIs, instance.MethodCreate, codes.PermissionDenied, infrav1.ReasonCreationFailed, false},
		"precondition":                  {asItIs, instance.MethodCreate, codes.FailedPrecondition, infrav1.ReasonCreationFailed, false},
		"not logged in":                 {asItIs, instance.MethodCreate, codes.Unauthenticated, infrav1.ReasonCreationFailed, false},
		"provider away":                 {asItIs, instance.MethodStatus, codes.Unavailable, infrav1.ReasonCreationFailed, false},
		"provider has a fault":          {asItIs, instance.MethodCreate, codes.Internal, infrav1.ReasonCreationFailed, false},
		"a driver that says nothing":    {asItIs, instance.MethodCreate, codes.Unknown, infrav1.ReasonCreationFailed, false},
		"a driver that cannot":          {asItIs, instance.MethodCreate, codes.Unimplemented, infrav1.ReasonCreationFailed, false},
		"a creation that was cut short": {asItIs, instance.MethodCreate, codes.Aborted, infrav1.ReasonCreationFailed, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.given)
			w.driver.fails(tc.method, tc.code)
			result := w.settle()
			w.wantReady(metav1.ConditionFalse, tc.reason, "out of order", tc.code.String())
			got := w.infra().Status
			if final := got.FailureReason != nil && got.FailureMessage != nil; final != tc.final {
				t.Fatalf("failed for good = %t, want %t", final, tc.final)
			}
			if tc.final {
				if *got.FailureReason != "InvalidConfiguration" { // Cluster API's own word
					t.Errorf("reason %q", *got.FailureReason)
				}
				return
			}
			if result.RequeueAfter <= 0 {
				t.Error("nothing brings the next attempt")
			}
			w.settleAfter(time.Hour)
			w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
		})
	}
}

// TestADriverMaySayAnything: bytes that no object can hold would be another text than the stored
// one at each pass, and be written each time.
func TestADriverMaySayAnything(t *testing.T) {
	w := newWorld(t)
	w.driver.failures[instance.MethodCreate] = []error{status.Error(codes.Internal, "no \xff disk")}
	w.settle()
	w.wantCondition(infrav1.ConditionReady, metav1.ConditionFalse, readyOf(w).Reason, "no \uFFFD disk")
}

// TestOneEventPerKindOfFailure: the driver's words may be others with each attempt.
func TestOneEventPerKindOfFailure(t *testing.T) {
	const long = 5000
	for name, method := range map[string]instance.Method{"creation": instance.MethodCreate, "deletion": instance.MethodDelete} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if method == instance.MethodDelete {
				w.settle()
				w.delete()
				w.told()
			}
			fail := func(code codes.Code, words string) {
				w.driver.failures[method] = append(w.driver.failures[method], status.Error(code, words))
			}
			for n := range 5 {
				fail(codes.Unavailable, fmt.Sprintf("request %d: try later", n))
			}
			for n := range 5 {
				fail(codes.Internal, fmt.Sprintf("request %d: %s", n, strings.Repeat("fault ", long)))
			}
			for range 10 {
				w.clock.Step(w.settle().RequeueAfter)
			}
			if told := w.told(); len(told) != 2 || !strings.Contains(told[0], "request 0") || len(w.driver.failures[method]) != 0 {
				t.Errorf("%d events, %d failures left", len(told), len(w.driver.failures[method]))
			}
			w.wantCondition(infrav1.ConditionReady, metav1.ConditionFalse, readyOf(w).Reason, "request 4", messages.Cut, " (Internal)")
		})
	}
}

// TestDriverThatNeverAnswers: it is said, and what it answers in the end counts.
func TestDriverThatNeverAnswers(t *testing.T) {
	w := newWorld(t)
	hangs := func() {
		for len(w.tasks) == 0 {
			w.pass()
		}
	}
	hangs()
	if result := w.pass(); result.RequeueAfter <= 0 || result.RequeueAfter > instance.Silence {
		t.Errorf("looks again after %v", result.RequeueAfter)
	}
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonCreating)
	w.clock.Step(instance.Silence)
	w.pass()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonCreationFailed, "has not answered for 15m")
	w.told()
	w.settle()
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	w.delete()
	hangs()
	w.pass()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonDeleting)
	w.told()
	w.clock.Step(instance.Silence)
	w.pass()
	w.pass()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonDeletionFailed, "has not answered for 15m")
	if told := w.told(); len(told) != 1 {
		t.Errorf("events %q, want one", told)
	}
	w.settle()
	if !w.gone() || len(w.driver.vms) != 0 {
		t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
	}
}

// TestNoVMForAMachineThatGoes: a hook may hold the Machine for long, and nobody wants its VM
// any more. One that there may be goes with the object all the same.
func TestNoVMForAMachineThatGoes(t *testing.T) {
	goes := func(g *given) {
		g.machine.DeletionTimestamp, g.machine.Finalizers = new(metav1.NewTime(g.infra.CreationTimestamp.Time)), []string{"machine.cluster.x-k8s.io"}
	}
	w := newWorld(t, goes)
	w.settleAfter(time.Hour)
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonDeleting, "Machine m1 is being deleted")
	if len(w.driver.calls) != 0 {
		t.Errorf("calls %v", w.driver.calls)
	}

	w = newWorld(t, func(g *given) { g.machine.Finalizers = []string{"machine.cluster.x-k8s.io"} })
	w.driver.fails(instance.MethodCreate, codes.ResourceExhausted)
	w.settle()
	w.remove(&core.Machine{ObjectMeta: metav1.ObjectMeta{Name: machineName}})
	w.settleAfter(time.Hour)
	if n := w.driver.made(instance.MethodCreate); n != 1 {
		t.Errorf("%d attempts, and one was before", n)
	}
	w.driver.vms[machineName] = "test:///vm-0" // made without our hearing of it
	w.delete()
	w.settle()
	if !w.gone() || len(w.driver.vms) != 0 {
		t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
	}

	w = newWorld(t, goes, func(g *given) { g.infra.Spec.ProviderID = "test:///vm-0" })
	w.driver.vms[machineName] = "test:///vm-0"
	w.settle()
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
}

// TestFailureDomainIsTakenBack: before a creation is begun, what the Machine says last counts.
func TestFailureDomainIsTakenBack(t *testing.T) {
	w := newWorld(t, func(g *given) { g.machine.Spec.FailureDomain = "nowhere" })
	w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownFailureDomain)
	w.changeMachine(func(m *core.Machine) { m.Spec.FailureDomain = "" })
	w.settle()
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if got := w.infra(); got.Spec.FailureDomain != "" {
		t.Errorf("failure domain %q", got.Spec.FailureDomain)
	}
}

// TestAnswerIsLost: the VM that was made is found, and no second one is made.
func TestAnswerIsLost(t *testing.T) {
	for _, restart := range []bool{false, true} {
		w := newWorld(t)
		w.driver.lost = true
		w.settle()
		if restart {
			w.restart()
		}
		w.settleAfter(time.Minute)
		w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
		if w.driver.count != 1 {
			t.Errorf("restart %t: %d VMs were made", restart, w.driver.count)
		}
	}
}

// TestWritesFail: whatever write fails, the next process makes no second VM.
func TestWritesFail(t *testing.T) {
	for at := range 5 {
		w := newWorld(t)
		n := 0
		w.refuse = func(string) error {
			if n++; n == at+1 {
				return errDown
			}
			return nil
		}
		for range 4 {
			_, _ = w.controller.Reconcile(t.Context(), ctrlRequest(w)) // one of them fails
			w.call()
		}
		w.refuse = nil
		w.restart()
		w.settleAfter(time.Minute)
		w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
		if w.driver.count != 1 {
			t.Errorf("write %d: %d VMs were made", at, w.driver.count)
		}
	}
}

// TestMoved (K7): where the object arrives without status, the VM is found and kept.
func TestMoved(t *testing.T) {
	w := newWorld(t)
	w.settle()
	before := w.infra()
	w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Finalizers = nil })
	w.remove(w.infra())
	moved := &infrav1.MillwrightMachine{Spec: before.Spec}
	moved.Name, moved.Namespace, moved.UID = before.Name, before.Namespace, "another-uid"
	moved.Labels, moved.Annotations, moved.OwnerReferences = before.Labels, before.Annotations, before.OwnerReferences
	w.create(moved)
	w.restart()
	w.settle()
	got := w.infra()
	if diff := cmp.Diff(before.Status.Addresses, got.Status.Addresses); diff != "" || got.Status.ProviderID != before.Status.ProviderID {
		t.Errorf("status %+v, was %+v", got.Status, before.Status)
	}
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if w.driver.count != 1 {
		t.Errorf("%d VMs were made", w.driver.count)
	}
}

// TestLost: a VM that is gone is not made again under the same name.
func TestLost(t *testing.T) {
	w := newWorld(t, func(g *given) { g.infra.Spec.ProviderID = "test:///gone" })
	w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonInstanceLost, "test:///gone")
	if got := w.infra().Status; got.Ready || got.FailureReason != nil || w.driver.count != 0 {
		t.Errorf("status %+v, %d VMs made", got, w.driver.count)
	}
}

// TestJoin: that the VM became a node is said, and also that it takes too long. Neither is
// anybody's end.
func TestJoin(t *testing.T) {
	w := newWorld(t)
	if result := w.settle(); result.RequeueAfter <= 0 || result.RequeueAfter > joinTimeout {
		t.Errorf("looks again after %v", result.RequeueAfter)
	}
	w.restart() // and the clock begins anew
	w.settleAfter(joinTimeout - time.Minute)
	w.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionFalse, infrav1.ReasonWaitingForNode)
	w.settleAfter(time.Minute)
	w.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionFalse, infrav1.ReasonJoinTimeout, "20m")
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if got := w.infra().Status; got.FailureReason != nil || !got.Ready {
		t.Errorf("status %+v", got)
	}
	w.changeMachine(func(m *core.Machine) { m.Status.NodeRef = &core.Reference{Name: "node"} })
	w.settle()
	w.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionTrue, infrav1.ReasonJoined)
}

// TestFailureDomain (S9, S38, M6): the Machine's is where the VM is made, and is kept.
func TestFailureDomain(t *testing.T) {
	place := func(g *given) {
		g.machine.Spec.FailureDomain = "b"
		g.infra.Spec.FailureDomains = []infrav1.Placement{{Name: "a"}, {Name: "b", ProviderSpec: raw(`{"zone":"zone-b"}`)}}
	}
	w := newWorld(t, place)
	w.settle()
	got := w.infra()
	if got.Spec.FailureDomain != "b" || got.Status.FailureDomain != "b" {
		t.Errorf("failure domain %q, in the status %q", got.Spec.FailureDomain, got.Status.FailureDomain)
	}
	class := w.driver.created[0].MachineClass
	if string(class.ProviderSpec.Raw) != `{"size":"small","zone":"zone-b"}` || class.NodeTemplate.Zone != "b" {
		t.Errorf("class %s, zone %q", class.ProviderSpec.Raw, class.NodeTemplate.Zone)
	}
	w.remove(&core.Machine{ObjectMeta: metav1.ObjectMeta{Name: machineName}}) // with it goes the failure domain
	w.delete()
	w.settle()
	if diff := cmp.Diff(class.ProviderSpec, w.driver.deleted[0].MachineClass.ProviderSpec); diff != "" || !w.gone() {
		t.Errorf("deleted by another class:\n%s", diff)
	}

	w = newWorld(t, place, func(g *given) { g.machine.Spec.FailureDomain = "c" })
	w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownFailureDomain, `"c"`, "spec.failureDomains")
	if len(w.driver.calls) != 0 {
		t.Errorf("the driver was asked: %v", w.driver.calls)
	}
}

// TestMissing: what may come is waited for, and never an end.
func TestMissing(t *testing.T) {
	for name, tc := range map[string]struct {
		given  func(*given)
		reason string
		says   string
		mend   func(*world)
	}{
		"credentials": {
			given:  func(g *given) { g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"} },
			reason: infrav1.ReasonCredentialsMissing, says: `"cloud"`,
			mend: func(w *world) { w.create(secret(w.namespace, "cloud", nil)) },
		},
		"class": {
			given: func(g *given) {
				g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
			},
			reason: infrav1.ReasonMachineClassMissing, says: `"small"`,
			mend: func(w *world) { w.create(newClass(w.namespace)) },
		},
		"the class's Secret": {
			given: func(g *given) {
				g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
				class := newClass(g.infra.Namespace)
				class.SecretRef = &corev1.SecretReference{Name: "cloud"}
				g.more = append(g.more, class)
			},
			reason: infrav1.ReasonMachineClassMissing, says: "cloud",
			mend: func(w *world) { w.create(secret(w.namespace, "cloud", nil)) },
		},
		"driver": {
			given:  func(g *given) { g.infra.Spec.Driver = "other" },
			reason: infrav1.ReasonUnknownDriver, says: `"other"`,
			mend: func(w *world) { w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.Driver = "test" }) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.given)
			w.settle()
			w.wantReady(metav1.ConditionFalse, tc.reason, tc.says)
			if got := w.infra(); len(w.driver.calls) != 0 || got.Status.FailureReason != nil || marks.Begun(got) {
				t.Errorf("calls %v, failure %v, begun %t", w.driver.calls, got.Status.FailureReason, marks.Begun(got))
			}
			if told := w.told(); len(told) != 1 {
				t.Errorf("events %q, want one", told)
			}
			tc.mend(w)
			w.settleAfter(time.Minute)
			w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
		})
	}
}

// TestMissingIsNoHindrance: where nothing was begun, nothing holds the deletion.
func TestMissingIsNoHindrance(t *testing.T) {
	w := newWorld(t, func(g *given) { g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"} })
	w.settle()
	w.delete()
	w.settle()
	if !w.gone() || len(w.driver.calls) != 0 {
		t.Errorf("gone %t, calls %v", w.gone(), w.driver.calls)
	}
}

// TestClassIsHeldFirst: without our finalizer the class could vanish while a VM is made
// from it.
func TestClassIsHeldFirst(t *testing.T) {
	w := newWorld(t, func(g *given) {
		g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
		class := newClass(g.infra.Namespace)
		class.Finalizers = nil
		g.more = append(g.more, class)
	})
	w.settle()
	if len(w.driver.calls) != 0 || marks.Begun(w.infra()) {
		t.Fatalf("calls %v", w.driver.calls)
	}
	change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = []string{infrav1.ClassFinalizer} })
	w.settle()
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
}
