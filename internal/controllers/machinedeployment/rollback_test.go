package machinedeployment

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestRollback_ToRevision checks rollbacks with three revisions, of which the third is current.
func TestRollback_ToRevision(t *testing.T) {
	for reason, test := range map[string]struct {
		to    int64
		class string
		event string
	}{
		"the previous one": {0, "b", "DeploymentRollback"},
		"the first":        {1, "a", "DeploymentRollback"},
		"the current":      {3, "c", "DeploymentRollbackTemplateUnchanged"},
		"a missing one":    {7, "c", "DeploymentRollbackRevisionNotFound"},
		"an invalid one":   {-1, "c", "DeploymentRollbackRevisionNotFound"},
	} {
		t.Run(reason, func(t *testing.T) {
			first := fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("1"))
			first.Annotations["why"], first.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout] = "first", "1m"
			s := newServer(fixture.Deployment(3, fixture.OfClass("c"), rollbackTo(test.to), func(d *v1alpha1.MachineDeployment) {
				d.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: fixture.Later, v1alpha1.AnnotationKeyRevision: "3", "why": "third", v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: "5m"}
				d.Status.ObservedGeneration = 1
			}), first, fixture.Set("b", 0, fixture.WithUID, fixture.OfRevision("2")), fixture.Set("c", 3, fixture.WithUID, fixture.OfRevision("3")))
			s.Target = nil
			s.pass(t)
			deployment := s.deployment()
			if deployment.Spec.RollbackTo != nil || deployment.Spec.Template.Spec.Class.Name != test.class {
				t.Errorf("class %s, rollbackTo %v", deployment.Spec.Template.Spec.Class.Name, deployment.Spec.RollbackTo)
			}
			if _, ok := deployment.Spec.Template.Labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey]; ok {
				t.Error("the deployment's template contains the hash label")
			}
			if deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] != fixture.Later || deployment.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout] != "5m" {
				t.Errorf("annotations %v", deployment.Annotations)
			}
			if test.class == "a" && deployment.Annotations["why"] != "first" {
				t.Errorf("annotations %v", deployment.Annotations)
			}
			if len(s.lines) != 1 || !strings.HasPrefix(s.lines[0], test.event+": ") {
				t.Errorf("events %q, want %s", s.lines, test.event)
			}
			s.pass(t)
			if test.class == "c" {
				return
			}
			set := s.all()["pool-"+test.class]
			if set.Annotations[v1alpha1.AnnotationKeyRevision] != "4" || s.deployment().Annotations[v1alpha1.AnnotationKeyRevision] != "4" {
				t.Errorf("revision %s, revision of the deployment %s", set.Annotations[v1alpha1.AnnotationKeyRevision], s.deployment().Annotations[v1alpha1.AnnotationKeyRevision])
			}
			if got := s.progress().Reason; got != "FoundNewMachineSet" {
				t.Errorf("reason %s", got)
			}
		})
	}
}

// TestRollback_RefusalIsReported checks that a refused rollback is reported until the template changes.
func TestRollback_RefusalIsReported(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), rollbackTo(99)), fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("1")), fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("2")))
	s.Target = nil
	refusal := func() v1alpha1.MachineDeploymentCondition {
		if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentRollbackRefused); at >= 0 {
			return s.deployment().Status.Conditions[at]
		}
		return v1alpha1.MachineDeploymentCondition{}
	}
	refused := errors.New("no")
	s.refuse = func(verb string, _ client.Object) error {
		if verb == "patch" && refusal().Reason != "" {
			return refused // as if the process terminated here
		}
		return nil
	}
	if _, err := s.Reconcile(t.Context(), request); !errors.Is(err, refused) {
		t.Fatalf("error %v", err)
	}
	s.refuse = nil
	check := func(when string) {
		t.Helper()
		const want = "spec.rollbackTo.revision: no machine set has revision 99; the template remains that of revision 2."
		if is := refusal(); is.Status != "True" || is.Reason != "DeploymentRollbackRevisionNotFound" || is.Message != want {
			t.Errorf("%s: %+v", when, is)
		}
	}
	check("spec.rollbackTo was not removed yet")
	s.pass(t)
	s.pass(t)
	if s.deployment().Spec.RollbackTo != nil {
		t.Error("spec.rollbackTo was not removed")
	}
	check("answered")
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 4 })
	s.pass(t)
	check("scaled")
	s.change(rollbackTo(1))
	s.pass(t)
	s.pass(t)
	if is := refusal(); is.Reason != "" {
		t.Errorf("condition after a successful rollback: %+v", is)
	}
	if want := 1; strings.Count(strings.Join(s.lines, "\n"), "DeploymentRollbackRevisionNotFound") != want {
		t.Errorf("events %q", s.lines)
	}
}

// TestRollback_WithoutPreviousRevision checks a rollback without a previous revision, before the first set exists.
func TestRollback_WithoutPreviousRevision(t *testing.T) {
	s := newServer(fixture.Deployment(1, rollbackTo(0)))
	for range 4 {
		s.pass(t)
	}
	at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentRollbackRefused)
	if at < 0 || !strings.HasPrefix(s.deployment().Status.Conditions[at].Message, "spec.rollbackTo: no earlier revision exists;") {
		t.Errorf("got %+v", s.deployment().Status.Conditions)
	}
	s.change(fixture.OfClass("b"))
	s.pass(t)
	if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentRollbackRefused); at >= 0 {
		t.Errorf("condition after the template changed: %+v", s.deployment().Status.Conditions[at])
	}
}

func TestRollback_WaitsWhilePaused(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), rollbackTo(0), fixture.Paused), fixture.Set("a", 0, fixture.WithUID), fixture.Set("b", 3, fixture.WithUID))
	s.pass(t)
	if s.deployment().Spec.RollbackTo == nil {
		t.Error("spec.rollbackTo was removed")
	}
}

func TestMachineDeployment_OldSetsAreDeleted(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(0)) }),
		fixture.Set("a", 0, fixture.WithUID), fixture.Set("b", 3, fixture.WithUID))
	s.Target = nil
	for range 2 {
		s.pass(t)
	}
	if set, ok := s.all()["pool-a"]; ok && set.DeletionTimestamp.IsZero() {
		t.Errorf("the old set was not deleted: %+v", set.ObjectMeta)
	}
}
