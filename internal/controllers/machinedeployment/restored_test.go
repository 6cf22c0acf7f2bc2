package machinedeployment

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/restore"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// restored makes a deployment one that was restored from a backup: it has no status, but the revision of a set.
func restored(d *v1alpha1.MachineDeployment) {
	d.Status = v1alpha1.MachineDeploymentStatus{}
	metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyRevision, "1")
}

// TestMachineDeployment_RestoredWaitsForItsSet checks that a restored deployment creates no set while its own is being
// restored, and lets that set wait for its Machines.
func TestMachineDeployment_RestoredWaitsForItsSet(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), fixture.Rolling("1", "0"), restored))
	for range 3 {
		s.pass(t)
	}
	if len(s.all()) > 0 || s.progress().Reason != v1alpha1.DeploymentReasonAwaitingRestore || !restore.Waits(s.deployment()) {
		t.Fatalf("%d sets, condition %+v, annotations %v", len(s.all()), s.progress(), s.deployment().Annotations)
	}
	set := fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("1"))
	set.OwnerReferences, set.Status = nil, v1alpha1.MachineSetStatus{}
	must(s.live.Create(t.Context(), set))
	for range 3 {
		s.pass(t)
	}
	adopted := s.only(t)
	if !metav1.IsControlledBy(adopted, s.deployment()) || !restore.Waits(adopted) {
		t.Fatalf("owners %v, annotations %v", adopted.OwnerReferences, adopted.Annotations)
	}
	if !strings.Contains(s.progress().Message, adopted.Name) {
		t.Errorf("condition %+v", s.progress())
	}
	restore.End(adopted)
	must(s.live.Update(t.Context(), adopted))
	adopted.Status = fixture.Set("b", 3).Status
	must(s.live.Status().Update(t.Context(), adopted))
	for range 3 {
		s.pass(t)
	}
	if got := s.only(t); got.Spec.Replicas != 3 || s.progress().Reason != v1alpha1.DeploymentReasonComplete || restore.Waits(s.deployment()) {
		t.Errorf("replicas %d, condition %+v, annotations %v", got.Spec.Replicas, s.progress(), s.deployment().Annotations)
	}
	if !slices.ContainsFunc(s.lines, func(line string) bool { return strings.HasPrefix(line, "Restored: ") }) {
		t.Errorf("events %q", s.lines)
	}
}

// TestMachineDeployment_RestoreTimesOut checks that a restored deployment creates a set when its own was not restored
// in time.
func TestMachineDeployment_RestoreTimesOut(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), restored))
	s.pass(t)
	if result := s.pass(t); result.RequeueAfter <= 0 || result.RequeueAfter > restore.Timeout {
		t.Errorf("the next pass is in %s", result.RequeueAfter)
	}
	s.Clock = clocktesting.NewFakePassiveClock(fixture.Noon.Add(restore.Timeout))
	for range 3 {
		s.pass(t)
	}
	if s.only(t).Spec.Replicas != 3 || !slices.ContainsFunc(s.lines, func(line string) bool { return strings.HasPrefix(line, "RestoreIncomplete: ") }) {
		t.Errorf("events %q", s.lines)
	}
}

// TestMachineDeployment_LivingSetDoesNotWait checks that a set that is released and adopted again does not wait, however
// young it is.
func TestMachineDeployment_LivingSetDoesNotWait(t *testing.T) {
	set := fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("1"))
	set.CreationTimestamp = metav1.NewTime(fixture.Noon)
	s := newServer(fixture.Deployment(3, fixture.OfClass("b")), set)
	s.pass(t)
	s.free(set.Name)
	for range 2 {
		s.pass(t)
	}
	if got := s.only(t); !metav1.IsControlledBy(got, s.deployment()) || restore.Waits(got) {
		t.Errorf("owners %v, annotations %v", got.OwnerReferences, got.Annotations)
	}
}

// TestMachineDeployment_CreatedSetDoesNotWait checks that a new set whose owner something else removed, so that its
// controller took it for a restored one, does not wait once its deployment adopts it.
func TestMachineDeployment_CreatedSetDoesNotWait(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b")))
	s.pass(t)
	created := s.only(t)
	s.free(created.Name)
	waiting := s.only(t)
	if !restore.BeginSet(waiting, fixture.Noon) {
		t.Fatalf("the set does not look restored: %v", waiting)
	}
	if err := s.Client.Update(t.Context(), waiting); err != nil {
		t.Fatal(err)
	}
	s.pass(t)
	if got := s.only(t); !metav1.IsControlledBy(got, s.deployment()) || restore.Waits(got) {
		t.Errorf("owners %v, annotations %v", got.OwnerReferences, got.Annotations)
	}
}
