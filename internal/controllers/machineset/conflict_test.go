package machineset

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

// annotate changes a Machine like a user. The cache does not show the change.
func (s *server) annotate(name, key, value string) {
	m := s.all()[name]
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, value)
	must(s.live.Update(testContext, m))
}

// leaving returns the names of the Machines that are being deleted, sorted.
func (s *server) leaving() []string {
	var names []string
	for name, m := range s.all() {
		if !m.DeletionTimestamp.IsZero() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// lookAgain runs a pass that meets a conflict. It must be retried, without an event.
func lookAgain(t *testing.T, s *server, c *Controller) {
	t.Helper()
	result, err := c.Reconcile(t.Context(), request)
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("result %+v, error %v; want a retry", result, err)
	}
	if lines := strings.Join(s.events.lines, "\n"); strings.Contains(lines, "FailedDelete") || len(s.set().Status.Conditions) > 0 {
		t.Errorf("events %q, conditions %+v", s.events.lines, s.set().Status.Conditions)
	}
}

// TestMachineSet_KeepsJustPreservedMachine checks that a Machine that was just preserved is not deleted even if the
// cache does not show that. Other Machines are deleted.
func TestMachineSet_KeepsJustPreservedMachine(t *testing.T) {
	for reason, test := range map[string]struct {
		replicas int32
		is       change
	}{
		"surplus": {0, func(*v1alpha1.Machine) {}},
		"failed":  {2, phase(v1alpha1.MachineFailed)},
		"named":   {2, marked(noon)},
	} {
		t.Run(reason, func(t *testing.T) {
			set := newSet(test.replicas)
			set.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: noon.Format(time.RFC3339)}
			s := newServer(set, machine("kept", test.is), machine("other", test.is))
			s.annotate("kept", v1alpha1.AnnotationKeyPreserve, "now")
			c := s.newController()
			lookAgain(t, s, c)
			if diff := cmp.Diff([]string{"other"}, s.leaving()); diff != "" {
				t.Fatalf("deleted: want - got +\n%s", diff)
			}
			for range 3 {
				s.catchUp()
				pass(t, c)
			}
			if !s.all()["kept"].DeletionTimestamp.IsZero() {
				t.Error("the preserved machine was deleted")
			}
			if set := s.set(); set.Status.ObservedGeneration != set.Generation {
				t.Errorf("the set does not settle: %+v", set.Status)
			}
		})
	}
}

// TestMachineSet_ConflictDoesNotHideFailure checks that a refused deletion is reported even if an earlier one met a conflict,
// and that the conflict is not reported.
func TestMachineSet_ConflictDoesNotHideFailure(t *testing.T) {
	s := newServer(newSet(0), machine("a"), machine("b"))
	s.respond = func(verb string, object client.Object) (error, bool) {
		if verb == "delete" && object.GetName() == "b" {
			return apierrors.NewForbidden(resource, "b", errors.New("no")), false
		}
		return nil, false
	}
	s.annotate("a", "new", "")
	c := s.newController()
	if _, err := c.Reconcile(t.Context(), request); !apierrors.IsForbidden(err) {
		t.Errorf("error %v", err)
	}
	lines := strings.Join(s.events.lines, "\n")
	conditions := s.set().Status.Conditions
	if !strings.Contains(lines, "FailedDelete") || len(conditions) != 1 || conditions[0].Reason != "FailedDelete" {
		t.Fatalf("events %q, conditions %+v", s.events.lines, conditions)
	}
	if strings.Contains(lines+conditions[0].Message, "conflict") || strings.Contains(conditions[0].Message, "another one") {
		t.Errorf("the conflict was reported: events %q, conditions %+v", s.events.lines, conditions)
	}
}

// TestMachineSet_OwnChangesCauseNoConflict checks that a Machine can be changed and deleted in one pass, with two
// requests.
func TestMachineSet_OwnChangesCauseNoConflict(t *testing.T) {
	for reason, test := range map[string]struct {
		is   change
		want []string
	}{
		"updated": {func(m *v1alpha1.Machine) { m.Spec.MachineConfiguration = drainFor(time.Hour) }, []string{"patch Machine a", "delete Machine a"}},
		"adopted": {ownerless, []string{"patch Machine a", "delete Machine a"}},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(newSet(0, heldBy(v1alpha1.FinalizerMCM)), machine("a", test.is))
			pass(t, s.newController())
			if diff := cmp.Diff(test.want, s.writes[:2]); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
			if s.activeCount() > 0 {
				t.Error("the machine was not deleted")
			}
		})
	}
}

// hastyUser changes each Machine just before its first deletion.
type hastyUser struct {
	client.Client
	does func(client.Object)
	seen sync.Map
}

func (u *hastyUser) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	if _, again := u.seen.LoadOrStore(object.GetName(), true); !again {
		u.does(object)
	}
	return u.Client.Delete(ctx, object, opts...)
}

// TestMachineSet_KeepsJustPreservedMachineOnServer checks with a real API server that a Machine with a change that the
// cache does not show is not deleted, and that the next pass deletes the others.
func TestMachineSet_KeepsJustPreservedMachineOnServer(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	g := gomega.NewWithT(t)
	set := env.Fresh(e, newSet(0))
	g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
	for _, name := range []string{"kept", "other"} {
		m := env.Fresh(e, machine(name))
		m.OwnerReferences = []metav1.OwnerReference{ownerReference(set)}
		g.Expect(e.Client.Create(t.Context(), m)).To(gomega.Succeed())
	}
	user := &hastyUser{does: func(object client.Object) {
		value := map[string]string{"kept": "now", "other": "false"}[object.GetName()]
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationKeyPreserve+`":"`+value+`"}}}`))
		m := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: object.GetName()}}
		if err := e.Client.Patch(t.Context(), m, patch); err != nil {
			t.Errorf("preserving %s: %v", m.Name, err)
		}
	}}
	e.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		user.Client = mgr.GetClient()
		return New(Options{Client: user, Live: mgr.GetAPIReader(), Events: events, Clock: clock.RealClock{}, Concurrency: 1}).SetupWithManager(mgr)
	})
	g.Eventually(func(g gomega.Gomega) {
		m := &v1alpha1.Machine{}
		g.Expect(e.Client.Get(t.Context(), client.ObjectKey{Namespace: e.Namespace, Name: "other"}, m)).To(gomega.Succeed())
		g.Expect(m.DeletionTimestamp).NotTo(gomega.BeNil())
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
		g.Expect(set.Status.ObservedGeneration).To(gomega.Equal(set.Generation))
		g.Expect(set.Status.Conditions).To(gomega.BeEmpty())
	}, eventually).Should(gomega.Succeed())
	m := &v1alpha1.Machine{}
	g.Expect(e.Client.Get(t.Context(), client.ObjectKey{Namespace: e.Namespace, Name: "kept"}, m)).To(gomega.Succeed())
	if !m.DeletionTimestamp.IsZero() {
		t.Error("the preserved machine was deleted")
	}
	events := &corev1.EventList{}
	g.Expect(e.Client.List(t.Context(), events, client.InNamespace(e.Namespace))).To(gomega.Succeed())
	for i := range events.Items {
		if events.Items[i].Reason == "FailedDelete" {
			t.Errorf("the conflict was reported: %s", events.Items[i].Message)
		}
	}
}
