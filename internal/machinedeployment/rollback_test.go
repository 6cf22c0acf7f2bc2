package machinedeployment

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func rollbackTo(revision int64) change {
	return func(d *v1alpha1.MachineDeployment) { d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: revision} }
}

func ofRevision(number string) func(*v1alpha1.MachineSet) {
	return func(set *v1alpha1.MachineSet) { set.Annotations[v1alpha1.AnnotationKeyRevision] = number }
}

// TestRollback: three revisions, the third of which is current.
func TestRollback(t *testing.T) {
	for reason, test := range map[string]struct {
		to    int64
		class string
		event string
	}{
		"the one before":     {0, "b", "DeploymentRollback"},
		"the first":          {1, "a", "DeploymentRollback"},
		"the current":        {3, "c", "DeploymentRollbackTemplateUnchanged"},
		"one that is gone":   {7, "c", "DeploymentRollbackRevisionNotFound"},
		"one that cannot be": {-1, "c", "DeploymentRollbackRevisionNotFound"},
	} {
		t.Run(reason, func(t *testing.T) {
			first := setOf("a", 0, withUID, ofRevision("1"))
			first.Annotations["why"], first.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout] = "first", "1m"
			s := newServer(newDeployment(3, class("c"), rollbackTo(test.to), func(d *v1alpha1.MachineDeployment) {
				d.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: later, v1alpha1.AnnotationKeyRevision: "3", "why": "third", v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: "5m"}
			}), first, setOf("b", 0, withUID, ofRevision("2")), setOf("c", 3, withUID, ofRevision("3")))
			s.Target = nil
			s.pass(t)
			deployment := s.deployment()
			if deployment.Spec.RollbackTo != nil || deployment.Spec.Template.Spec.Class.Name != test.class {
				t.Errorf("got the class %s and the wish %v", deployment.Spec.Template.Spec.Class.Name, deployment.Spec.RollbackTo)
			}
			if _, ok := deployment.Spec.Template.Labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey]; ok {
				t.Error("the hash is in the deployment's template")
			}
			if deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] != later || deployment.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout] != "5m" {
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
				t.Errorf("revision %s, of the deployment %s", set.Annotations[v1alpha1.AnnotationKeyRevision], s.deployment().Annotations[v1alpha1.AnnotationKeyRevision])
			}
			if got := s.progress().Reason; got != "FoundNewMachineSet" {
				t.Errorf("it says %s", got)
			}
		})
	}
}

func TestRollbackWaitsWhilePaused(t *testing.T) {
	s := newServer(newDeployment(3, class("b"), rollbackTo(0), paused), setOf("a", 0, withUID), setOf("b", 3, withUID))
	s.pass(t)
	if s.deployment().Spec.RollbackTo == nil {
		t.Error("the wish is gone")
	}
}

func TestHistory(t *testing.T) {
	limit := func(n int32) change {
		return func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(n) }
	}
	for reason, test := range map[string]struct {
		changes []change
		sets    sets
		want    []string
	}{
		"no limit":                         {nil, sets{setOf("a", 0), setOf("b", 0), setOf("c", 0), setOf("d", 3)}, nil},
		"none":                             {[]change{limit(0)}, sets{setOf("a", 0), setOf("b", 0), setOf("d", 3)}, []string{"prune pool-a", "prune pool-b"}},
		"negative":                         {[]change{limit(-3)}, sets{setOf("a", 0), setOf("d", 3)}, []string{"prune pool-a"}},
		"the oldest goes":                  {[]change{limit(2)}, sets{setOf("c", 0), setOf("b", 0), setOf("a", 0), setOf("d", 3)}, []string{"prune pool-a"}},
		"not in the middle of a rollout":   {[]change{limit(0)}, sets{setOf("a", 0), setOf("b", 1), setOf("d", 3, reports(3, 2))}, nil},
		"nor before all are available":     {[]change{limit(0)}, sets{setOf("a", 0), setOf("d", 3, reports(3, 2))}, nil},
		"paused: what has no machines":     {[]change{limit(0), paused}, sets{setOf("a", 0), setOf("b", 1), setOf("c", 0, unsettled), setOf("d", 3)}, []string{"prune pool-a"}},
		"one with machines is passed over": {[]change{limit(1), paused}, sets{setOf("a", 1), setOf("b", 0), setOf("d", 3)}, nil},
	} {
		t.Run(reason, func(t *testing.T) {
			f := gather(newDeployment(3, append(test.changes, class("d"))...), test.sets, noon)
			var got []string
			for _, op := range planHistory(f) {
				got = append(got, string(op.action)+" "+op.set.Name)
			}
			if strings.Join(got, ",") != strings.Join(test.want, ",") {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestOldSetsAreDeleted(t *testing.T) {
	s := newServer(newDeployment(3, class("b"), func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(0)) }),
		setOf("a", 0, withUID), setOf("b", 3, withUID))
	s.Target = nil
	for range 2 {
		s.pass(t)
	}
	if set, ok := s.all()["pool-a"]; ok && set.DeletionTimestamp.IsZero() {
		t.Errorf("the old set is there: %+v", set.ObjectMeta)
	}
}
