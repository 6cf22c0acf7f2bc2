package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestMachineDeployment_ScaleFailureStartsNoRollout checks that a failure to scale does not change a completed rollout or start its
// deadline.
func TestMachineDeployment_ScaleFailureStartsNoRollout(t *testing.T) {
	s := newServer(fixture.Deployment(3, func(d *v1alpha1.MachineDeployment) { d.Spec.ProgressDeadlineSeconds = ptr.To(int32(600)) }), fixture.Set("a", 3, fixture.WithUID))
	s.Target = nil
	s.pass(t)
	s.pass(t)
	over := s.progress()
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 5 })
	s.refuse = refusedSets(apierrors.NewInternalError(errors.New("etcd leader changed")))
	for range 2 {
		if result, err := s.Reconcile(t.Context(), request); !apierrors.IsInternalError(err) || result.RequeueAfter != 0 {
			t.Fatalf("result %+v, error %v", result, err)
		}
	}
	if diff := cmp.Diff(over, s.progress()); diff != "" {
		t.Errorf("progress: want - got +\n%s", diff)
	}
	deployment := s.deployment()
	at := conditionAt(deployment.Status, v1alpha1.MachineDeploymentReplicaFailure)
	if at < 0 || deployment.Status.Conditions[at].Reason != v1alpha1.DeploymentReasonSetUpdateError || !strings.Contains(deployment.Status.Conditions[at].Message, "etcd leader changed") {
		t.Errorf("got %+v", deployment.Status.Conditions)
	}
	if deployment.Status.ObservedGeneration == deployment.Generation {
		t.Error("the generation counts as observed")
	}
	s.refuse = nil
	s.pass(t)
	s.pass(t)
	if diff := cmp.Diff(over, s.progress()); diff != "" || s.only(t).Spec.Replicas != 5 {
		t.Errorf("the set has %d replicas; progress: want - got +\n%s", s.only(t).Spec.Replicas, diff)
	}
	if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure); at >= 0 {
		t.Errorf("the condition remains: %+v", s.deployment().Status.Conditions[at])
	}
}

// TestRollout_FailureIsReported checks that a failure during a rollout is reported in the condition Progressing.
func TestRollout_FailureIsReported(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), fixture.Rolling("1", "1")), fixture.Set("a", 3, fixture.WithUID), fixture.Set("b", 0, fixture.WithUID, fixture.OfRevision("2")))
	s.Target = nil
	s.refuse = refusedSets(apierrors.NewInternalError(errors.New("etcd leader changed")))
	if _, err := s.Reconcile(t.Context(), request); err == nil {
		t.Fatal("no error")
	}
	if got := s.progress(); got.Reason != v1alpha1.DeploymentReasonSetUpdateError || got.Status != v1alpha1.ConditionFalse {
		t.Errorf("got %+v", got)
	}
}

// denied returns the error for a denial by a webhook with the given code.
func denied(code int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Message: `admission webhook "policy.example.com" denied the request: no`}}
}

// deniedDeletions simulates a webhook that denies all deletions.
func (s *server) deniedDeletions(code int32) {
	s.Client = interceptor.NewClient(s.Client.(client.WithWatch), interceptor.Funcs{Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
		return denied(code)
	}})
}

// TestMachineDeployment_DenialIsReportedWithAnyCode checks that a denial by a webhook is reported with any code, and that
// retries are delayed by the back-off.
func TestMachineDeployment_DenialIsReportedWithAnyCode(t *testing.T) {
	for _, code := range []int32{http.StatusForbidden, http.StatusConflict, http.StatusNotFound} {
		t.Run(fmt.Sprintf("a set is not scaled, %d", code), func(t *testing.T) {
			s := newServer(fixture.Deployment(4), fixture.Set("a", 3, fixture.WithUID))
			s.Target = nil
			s.refuse = func(_ string, object client.Object) error {
				if _, ok := object.(*v1alpha1.MachineSet); ok {
					return denied(code)
				}
				return nil
			}
			s.fails(t)
			if !reports(s.deployment().Status, v1alpha1.MachineDeploymentProgressing, "denied") {
				t.Errorf("the denial was not reported: %+v", s.deployment().Status.Conditions)
			}
		})
		t.Run(fmt.Sprintf("a machine is not marked, %d", code), func(t *testing.T) {
			s := scaledByName(t, "m-1~"+fixture.Later)
			s.refuse = func(_ string, object client.Object) error {
				if _, ok := object.(*v1alpha1.Machine); ok {
					return denied(code)
				}
				return nil
			}
			s.unmarked(t)
			if !reports(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure, "denied") {
				t.Errorf("the denial was not reported: %+v", s.deployment().Status.Conditions)
			}
		})
		t.Run(fmt.Sprintf("an old set is not deleted, %d", code), func(t *testing.T) {
			s := newServer(fixture.Deployment(3, fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To[int32](0) }),
				fixture.Set("a", 0, fixture.WithUID), fixture.Set("b", 3, fixture.WithUID))
			s.Target = nil
			s.deniedDeletions(code)
			s.fails(t)
			if slices.ContainsFunc(s.lines, func(line string) bool { return strings.HasPrefix(line, "DeletedMachineSet") }) {
				t.Errorf("events %q, although the set was not deleted", s.lines)
			}
		})
		t.Run(fmt.Sprintf("the finalizer is not removed, %d", code), func(t *testing.T) {
			s := newServer(fixture.Deployment(0, func(d *v1alpha1.MachineDeployment) { d.Finalizers = []string{v1alpha1.FinalizerMCM} }))
			must(s.live.Delete(t.Context(), s.deployment()))
			s.refuse = func(string, client.Object) error { return denied(code) }
			s.fails(t)
		})
	}
}

// fails runs a pass that must fail, so that the next one is delayed by the back-off.
func (s *server) fails(t *testing.T) {
	t.Helper()
	if _, err := s.Reconcile(t.Context(), request); err == nil {
		t.Error("no error")
	}
}

// TestMachineDeployment_DeniedDeletionIsReported checks that the denial is reported during and after a rollout.
func TestMachineDeployment_DeniedDeletionIsReported(t *testing.T) {
	for name, sets := range map[string]sets{
		"after a rollout":  {fixture.Set("b", 3, fixture.WithUID, mcm)},
		"during a rollout": {fixture.Set("a", 2, fixture.WithUID, mcm), fixture.Set("b", 2, fixture.WithUID, mcm)},
	} {
		for _, code := range []int32{http.StatusForbidden, http.StatusConflict, http.StatusNotFound} {
			t.Run(fmt.Sprintf("%s, %d", name, code), func(t *testing.T) {
				s := newServer(fixture.Deployment(3, fixture.OfClass("b"), fixture.Rolling("1", "1"), func(d *v1alpha1.MachineDeployment) { d.Finalizers = []string{v1alpha1.FinalizerMCM} }))
				for _, set := range sets {
					must(s.live.Create(t.Context(), set.DeepCopy()))
				}
				s.Target = nil
				s.pass(t)
				must(s.live.Delete(t.Context(), s.deployment()))
				s.deniedDeletions(code)
				s.fails(t)
				if !reports(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure, "denied") {
					t.Errorf("the denial was not reported: %+v", s.deployment().Status.Conditions)
				}
				s.statusWrites()
				s.fails(t)
				if got := s.statusWrites(); got > 0 {
					t.Errorf("%d more writes of the same status", got)
				}
			})
		}
	}
}

// TestMark_RemovedByWebhookIsReported checks that the removal of a mark by a webhook is reported, and that it delays only the
// scaling of that set.
func TestMark_RemovedByWebhookIsReported(t *testing.T) {
	for name, takeOff := range map[string]func(*v1alpha1.Machine){
		"the priority": func(m *v1alpha1.Machine) { m.Annotations[v1alpha1.AnnotationKeyMachinePriority] = "3" },
		"the time":     func(m *v1alpha1.Machine) { delete(m.Annotations, v1alpha1.AnnotationKeyMarkedForDeletionTime) },
	} {
		t.Run(name, func(t *testing.T) {
			s := scaledByName(t, "m-1~"+fixture.Later)
			s.lines = nil
			s.refuse = func(_ string, object client.Object) error {
				if machine, ok := object.(*v1alpha1.Machine); ok {
					takeOff(machine)
				}
				return nil
			}
			s.unmarked(t)
			if got := s.deployment(); !reports(got.Status, v1alpha1.MachineDeploymentReplicaFailure, "m-1: the API server changed the mark") {
				t.Errorf("the changed mark was not reported: %+v", got.Status.Conditions)
			}
			if slices.ContainsFunc(s.lines, func(line string) bool { return strings.HasPrefix(line, "MachineMarked") }) {
				t.Errorf("events %q, although the machine was not marked", s.lines)
			}
			s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 30 })
			s.unmarked(t)
			if n := s.only(t).Spec.Replicas; n != 30 {
				t.Errorf("the set has %d replicas, want 30", n)
			}
		})
	}
}

// TestMark_UnscaledSetIsUpdated checks that a set that cannot be scaled down still gets the annotation to
// unfreeze it and changes for existing machines, but not the annotation with the new size.
func TestMark_UnscaledSetIsUpdated(t *testing.T) {
	s, refused := scaledByName(t, "m-1~"+fixture.Later), "m-1"
	s.refusedMachine(&refused)
	s.setSet(t, "pool-a", func(set *v1alpha1.MachineSet) { set.Labels[v1alpha1.LabelKeyFreeze] = isTrue })
	s.change(func(d *v1alpha1.MachineDeployment) {
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyUnfreeze, "please")
		d.Spec.Template.Spec.NodeTemplateSpec.Labels = map[string]string{"team": "a"}
	})
	for range 2 {
		s.unmarked(t)
	}
	set := s.only(t)
	if got := set.Annotations[v1alpha1.AnnotationKeyUnfreeze]; got != isTrue {
		t.Errorf("annotation to unfreeze: %q on the set, %q on the deployment", got, s.deployment().Annotations[v1alpha1.AnnotationKeyUnfreeze])
	}
	if got := set.Spec.Template.Spec.NodeTemplateSpec.Labels; got["team"] != "a" {
		t.Errorf("labels of its nodes: %v", got)
	}
	if set.Spec.Replicas != 3 {
		t.Errorf("the set has %d replicas, want 3", set.Spec.Replicas)
	}
}

// TestMark_ManyFailuresAreShortened checks that the message names only some of many machines.
func TestMark_ManyFailuresAreShortened(t *testing.T) {
	const n = 200
	set := fixture.Set("a", n, fixture.WithUID)
	objects, names := []client.Object{fixture.Deployment(n), set}, []string{}
	for i := range n {
		machine := fixture.Member(set, fmt.Sprintf("a-long-name-as-of-a-worker-pool-in-a-zone-%05d", i))
		objects, names = append(objects, machine), append(names, machine.Name+"~"+fixture.Later)
	}
	s := newServer(objects...)
	s.Target = nil
	s.pass(t)
	s.change(func(d *v1alpha1.MachineDeployment) {
		d.Spec.Replicas = 0
		d.Annotations[v1alpha1.AnnotationKeyTriggerDeletion] = strings.Join(names, ",")
		d.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = fixture.Later
	})
	s.refuse = func(_ string, object client.Object) error {
		if _, ok := object.(*v1alpha1.Machine); ok {
			return denied(http.StatusForbidden)
		}
		return nil
	}
	_, err := s.Reconcile(t.Context(), request)
	if !errors.Is(err, rollout.ErrMark) || len(err.Error()) > maxMessage {
		t.Errorf("the error has %d bytes: %.200v", len(err.Error()), err)
	}
	at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure)
	if at < 0 {
		t.Fatal("the condition is missing")
	}
	message := s.deployment().Status.Conditions[at].Message
	for _, part := range []string{"-00000: ", "and 197 more; the machine set"} {
		if !strings.Contains(message, part) || len(message) > maxMessage {
			t.Errorf("want %q within %d bytes, got %d: %s", part, maxMessage, len(message), message)
		}
	}
}

// TestMachineDeployment_LongErrorIsShortened checks that a long message is shortened and reported once.
func TestMachineDeployment_LongErrorIsShortened(t *testing.T) {
	s := newServer(fixture.Deployment(4), fixture.Set("a", 3, fixture.WithUID))
	s.Target = nil
	s.refuse = func(_ string, object client.Object) error {
		if _, ok := object.(*v1alpha1.MachineSet); ok {
			return errors.New("the first word, " + strings.Repeat("and another word, ", 10000) + "the last word")
		}
		return nil
	}
	s.fails(t)
	s.fails(t)
	reported := 0
	for _, c := range s.deployment().Status.Conditions {
		if strings.Contains(c.Message, "the first word") && strings.HasSuffix(c.Message, "the last word") && len(c.Message) <= maxMessage {
			reported++
		}
	}
	if reported != 1 {
		t.Errorf("%d events", reported)
	}
}

// reports reports whether a condition of the given type contains the text.
func reports(status v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType, text string) bool {
	at := conditionAt(status, kind)
	return at >= 0 && strings.Contains(status.Conditions[at].Message, text)
}
