package machinedeployment

import (
	"context"
	"errors"
	"maps"
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
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestMachineDeployment_CreatesSet(t *testing.T) {
	s := newServer(fixture.Deployment(3, func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{
			v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: "30m",
			v1alpha1.AnnotationKeyTriggerDeletion:                 "x~1",
		}
		d.Spec.MinReadySeconds, d.Spec.AutoPreserveFailedMachineMax = 500, 2
	}))
	s.pass(t)
	deployment, set := s.deployment(), s.only(t)
	hash := set.Labels["machine-template-hash"]
	labels := map[string]string{"name": fixture.Pool, "machine-template-hash": hash}
	want := v1alpha1.MachineSetSpec{
		Replicas: 3, Selector: &metav1.LabelSelector{MatchLabels: labels}, MinReadySeconds: 500, AutoPreserveFailedMachineMax: 2,
		Template: *deployment.Spec.Template.DeepCopy(),
	}
	want.Template.Labels = labels
	if diff := cmp.Diff(want, set.Spec); diff != "" {
		t.Errorf("spec: want - got +\n%s", diff)
	}
	annotations := map[string]string{
		v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: "30m",
		v1alpha1.AnnotationKeyRevision:                        "1",
		v1alpha1.AnnotationKeyDesiredReplicas:                 "3",
		v1alpha1.AnnotationKeyMaxReplicas:                     "4",
	}
	if diff := cmp.Diff(annotations, set.Annotations); diff != "" {
		t.Errorf("annotations: want - got +\n%s", diff)
	}
	if !metav1.IsControlledBy(set, deployment) || set.Name != revision.SetName(fixture.Pool, hash) || !slices.Equal(set.Finalizers, []string{v1alpha1.FinalizerMCM}) {
		t.Errorf("got %+v", set.ObjectMeta)
	}
	if !slices.Contains(deployment.Finalizers, v1alpha1.FinalizerMCM) || deployment.Annotations[v1alpha1.AnnotationKeyRevision] != "1" {
		t.Errorf("got %+v", deployment.ObjectMeta)
	}
	if s.progress().Reason != "NewMachineSetCreated" {
		t.Errorf("got %+v", s.progress())
	}
	if want := []string{"ScalingMachineSet: Scaled up machine set " + set.Name + " to 3: no machine set has this template yet"}; !slices.Equal(want, s.lines) {
		t.Errorf("events %q, want %q", s.lines, want)
	}
	s.pass(t)
	s.writes = nil
	s.pass(t)
	if len(s.writes) > 0 {
		t.Errorf("unexpected writes: %q", s.writes)
	}
}

// TestMachineDeployment_StaleCacheCausesNoDuplicates checks that nothing is created twice, and that the status does not report a
// missing set.
func TestMachineDeployment_StaleCacheCausesNoDuplicates(t *testing.T) {
	s := newServer(fixture.Deployment(3))
	s.pass(t)
	s.hidden = []string{s.only(t).Name}
	before := s.progress()
	for range 3 {
		if result := s.pass(t); result.RequeueAfter == 0 {
			t.Error("no next pass is scheduled")
		}
	}
	s.only(t)
	if diff := cmp.Diff(before, s.progress()); diff != "" {
		t.Errorf("the status changed:\n%s", diff)
	}
	if got := s.deployment().Status.CollisionCount; got != nil {
		t.Errorf("%d collisions with its own set", *got)
	}
}

func TestMachineDeployment_SetNameIsTaken(t *testing.T) {
	foreign := fixture.Set("b", 1, func(set *v1alpha1.MachineSet) {
		hash := revision.Hash(&fixture.Deployment(3).Spec.Template, 0)
		set.Name, set.OwnerReferences, set.Labels = revision.SetName(fixture.Pool, hash), nil, nil
	})
	s := newServer(fixture.Deployment(3), foreign)
	if _, err := s.Reconcile(t.Context(), request); !errors.Is(err, rollout.ErrNameTaken) {
		t.Fatalf("error %v", err)
	}
	s.pass(t)
	if n := *s.deployment().Status.CollisionCount; n != 1 {
		t.Errorf("%d collisions, want 1", n)
	}
	all := s.all()
	if len(all) != 2 || len(all[foreign.Name].OwnerReferences) > 0 {
		t.Errorf("got %q", slices.Sorted(maps.Keys(all)))
	}
	s.pass(t)
	if len(s.all()) != 2 {
		t.Error("the set with the other name was not found again")
	}
}

// TestMachineDeployment_DeletedSetIsReplaced checks that another set with the same template replaces a deleted set at the
// speed of a rollout, and that the status counts the remaining machines.
func TestMachineDeployment_DeletedSetIsReplaced(t *testing.T) {
	s := newServer(fixture.Deployment(5, fixture.Rolling("1", "2")))
	s.Target = nil
	s.pass(t)
	first, second := s.only(t).Name, ""
	reported := func(name string, replicas, available int32) {
		s.setSet(t, name, func(set *v1alpha1.MachineSet) {
			set.Status.ObservedGeneration = set.Generation
			fixture.Reports(replicas, available)(set)
		})
	}
	check := func(when string, replicas, available int32, asked map[string]int32) {
		t.Helper()
		asks := map[string]int32{}
		for name, set := range s.all() {
			asks[name] = set.Spec.Replicas
		}
		status := s.deployment().Status
		if diff := cmp.Diff(asked, asks); diff != "" || status.Replicas != replicas || status.AvailableReplicas != available {
			t.Fatalf("%s: want - got +\n%sstatus %+v", when, diff, status)
		}
	}
	reported(first, 5, 5)
	s.pass(t)
	s.pass(t)
	must(s.live.Delete(t.Context(), s.only(t)))
	s.setSet(t, first, func(set *v1alpha1.MachineSet) { set.Generation++ }) // like an API server
	s.pass(t)
	check("before the set reports its machines", 5, 5, map[string]int32{first: 5})
	reported(first, 5, 0)
	s.lines = nil
	if _, err := s.Reconcile(t.Context(), request); !errors.Is(err, rollout.ErrNameTaken) {
		t.Fatalf("error %v", err)
	}
	check("the name is taken", 5, 0, map[string]int32{first: 5})
	s.pass(t)
	second = revision.Current(slices.Collect(maps.Values(s.all())), &s.deployment().Spec.Template).Name
	want := "ScalingMachineSet: Scaled up machine set " + second + " to 1: the machine set of this template is being deleted: at most 6 machines allowed during the rollout, currently 5"
	if diff := cmp.Diff([]string{want}, s.lines); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
	reported(second, 1, 1)
	reported(first, 2, 0)
	s.pass(t)
	check("2 are left", 3, 1, map[string]int32{first: 5, second: 4})
	gone := s.all()[first]
	gone.Finalizers = nil
	must(s.live.Update(t.Context(), gone))
	reported(second, 4, 4)
	s.pass(t)
	reported(second, 5, 5)
	s.pass(t)
	check("gone", 5, 5, map[string]int32{second: 5})
	if d := s.deployment(); d.Status.ObservedGeneration != d.Generation || s.progress().Reason != v1alpha1.DeploymentReasonComplete {
		t.Errorf("status %+v", d.Status)
	}
}

// TestMachineDeployment_UnselectedSetIsReported checks that a set that the selector does not match is not created. The
// deployment would release it immediately and create more and more sets.
func TestMachineDeployment_UnselectedSetIsReported(t *testing.T) {
	const hash = v1alpha1.DefaultMachineDeploymentUniqueLabelKey
	expression := func(operator metav1.LabelSelectorOperator, values ...string) change {
		return func(d *v1alpha1.MachineDeployment) {
			d.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: hash, Operator: operator, Values: values}}
		}
	}
	ofASet := func(d *v1alpha1.MachineDeployment) {
		labels := map[string]string{"name": fixture.Pool, hash: "123"}
		d.Spec.Selector, d.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: labels}, labels
	}
	made := func(set *v1alpha1.MachineSet) {
		fixture.WithUID(set)
		set.Labels[hash], set.Spec.Template.Labels[hash], set.Spec.Selector.MatchLabels[hash] = "123", "123", "123"
	}
	for reason, test := range map[string]struct {
		change  change
		sets    sets
		refused bool
		left    int
	}{
		"copied from a set":            {ofASet, nil, true, 0},
		"no hash":                      {expression(metav1.LabelSelectorOpDoesNotExist), nil, true, 0},
		"another hash":                 {expression(metav1.LabelSelectorOpNotIn, "123"), nil, false, 1},
		"the set exists":               {ofASet, sets{fixture.Set("a", 3, made)}, false, 1},
		"the set exists, and is old":   {func(d *v1alpha1.MachineDeployment) { ofASet(d); fixture.OfClass("b")(d) }, sets{fixture.Set("a", 3, made)}, true, 1},
		"the set exists, but not ours": {expression(metav1.LabelSelectorOpDoesNotExist), sets{fixture.Set("a", 3, fixture.WithUID)}, true, 1},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(fixture.Deployment(3, test.change))
			for _, set := range test.sets {
				must(s.live.Create(t.Context(), set))
			}
			for range 5 {
				s.pass(t)
			}
			if got := len(s.all()); got != test.left {
				t.Errorf("%d sets, want %d", got, test.left)
			}
			got := s.progress()
			if refused := got.Reason == v1alpha1.DeploymentReasonInvalid; refused != test.refused {
				t.Fatalf("got %+v", got)
			}
			if !test.refused {
				return
			}
			if !strings.HasPrefix(got.Message, "spec.selector: ") || !slices.Equal(s.lines, []string{"InvalidSpec: " + got.Message}) {
				t.Errorf("message %q, events %q", got.Message, s.lines)
			}
			for _, set := range s.all() {
				if set.Spec.Replicas != 3 || !metav1.IsControlledBy(set, s.deployment()) {
					t.Errorf("set %s was changed: %+v", set.Name, set.ObjectMeta)
				}
			}
		})
	}
}

// TestMachineDeployment_UnselectedSetIsNotCreated checks that a set that the selector does not match is not created, even if
// the plan requests it.
func TestMachineDeployment_UnselectedSetIsNotCreated(t *testing.T) {
	s := newServer(fixture.Deployment(3, func(d *v1alpha1.MachineDeployment) {
		d.Spec.Selector.MatchLabels = map[string]string{v1alpha1.DefaultMachineDeploymentUniqueLabelKey: "123"}
	}))
	r := rollout.New(rollout.NewFacts(s.deployment(), nil, fixture.Noon))
	if o := s.current().apply(t.Context(), r, rollout.Plan(r)); !errors.Is(o.Failure, rollout.ErrCreate) {
		t.Errorf("error %v", o.Failure)
	}
	if len(s.all()) > 0 {
		t.Error("the set was created")
	}
}

func TestMachineDeployment_ScalingCopiesAnnotations(t *testing.T) {
	s := newServer(fixture.Deployment(3))
	s.pass(t)
	s.change(func(d *v1alpha1.MachineDeployment) {
		d.Spec.Replicas = 2
		d.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = "2026-01-02T12:00:00Z"
	})
	s.pass(t)
	set := s.only(t)
	if set.Spec.Replicas != 2 || set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] != "2026-01-02T12:00:00Z" ||
		set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas] != "2" || set.Annotations[v1alpha1.AnnotationKeyMaxReplicas] != "3" {
		t.Errorf("%d replicas, annotations %v", set.Spec.Replicas, set.Annotations)
	}
}

// TestMachineDeployment_OldSetKeepsAnnotations checks that annotations that explain a change are set only on the set of that
// change, and that annotations that affect all machines are set on all sets.
func TestMachineDeployment_OldSetKeepsAnnotations(t *testing.T) {
	const why = "kubernetes.io/change-cause"
	timeout := v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout
	first := fixture.Set("a", 3, fixture.WithUID, fixture.OfRevision("1"))
	first.Annotations[why], first.Annotations[timeout] = "the first", "1m"
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), fixture.Rolling("1", "1"), func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{why: "the second", timeout: "5m", v1alpha1.AnnotationKeyLastReplicaChange: fixture.Later}
	}), first, fixture.Set("b", 0, fixture.WithUID, fixture.OfRevision("2")))
	s.Target = nil
	s.pass(t)
	sets := s.all()
	if got := sets["pool-a"].Spec.Replicas; got != 2 {
		t.Fatalf("the old set has %d replicas, want 2", got)
	}
	for set, cause := range map[string]string{"pool-a": "the first", "pool-b": "the second"} {
		want := map[string]string{why: cause, timeout: "5m", v1alpha1.AnnotationKeyLastReplicaChange: fixture.Later}
		for key, value := range want {
			if got := sets[set].Annotations[key]; got != value {
				t.Errorf("%s: annotation %s = %q, want %q", set, key, got, value)
			}
		}
	}
}

func TestMachineDeployment_RevisionsIncrease(t *testing.T) {
	s := newServer(fixture.Deployment(0))
	s.pass(t)
	s.change(fixture.OfClass("b"))
	s.pass(t)
	revisions := map[string]string{}
	for _, set := range s.all() {
		revisions[set.Spec.Template.Spec.Class.Name] = set.Annotations[v1alpha1.AnnotationKeyRevision]
	}
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, revisions); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
	if got := s.deployment().Annotations[v1alpha1.AnnotationKeyRevision]; got != "2" {
		t.Errorf("revision of the deployment: %s", got)
	}
}

// TestMachineDeployment_ConflictIsNotReported checks that a conflict is retried and not reported.
func TestMachineDeployment_ConflictIsNotReported(t *testing.T) {
	s := newServer(fixture.Deployment(3))
	s.pass(t)
	s.pass(t)
	before := s.deployment().Status
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 5 })
	s.refuse = func(verb string, object client.Object) error {
		if verb == "patch" && object.GetName() != fixture.Pool {
			return apierrors.NewConflict(v1alpha1.SchemeGroupVersion.WithResource("machinesets").GroupResource(), object.GetName(), errors.New("changed"))
		}
		return nil
	}
	if result := s.pass(t); result.RequeueAfter == 0 {
		t.Error("no retry is scheduled")
	}
	if diff := cmp.Diff(before, s.deployment().Status); diff != "" {
		t.Errorf("the status changed:\n%s", diff)
	}
}

func TestMachineDeployment_RefusalIsReported(t *testing.T) {
	s := newServer(fixture.Deployment(3))
	s.refuse = func(verb string, object client.Object) error {
		if verb == "create" {
			return apierrors.NewForbidden(v1alpha1.SchemeGroupVersion.WithResource("machinesets").GroupResource(), object.GetName(), errors.New("quota"))
		}
		return nil
	}
	for range 3 {
		if _, err := s.Reconcile(t.Context(), request); !apierrors.IsForbidden(err) {
			t.Fatalf("error %v", err)
		}
	}
	if got := s.progress(); got.Reason != "MachineSetCreateError" || !strings.Contains(got.Message, "quota") {
		t.Errorf("got %+v", got)
	}
	n := 0
	for _, write := range s.writes {
		if write == "patch status pool" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d writes of the status, want one", n)
	}
}

func TestController_AdoptsAndReleases(t *testing.T) {
	lost := fixture.Set("a", 3, func(set *v1alpha1.MachineSet) { set.OwnerReferences = nil })
	changed := fixture.Set("b", 2, func(set *v1alpha1.MachineSet) { set.Labels = map[string]string{"name": "other"} })
	s := newServer(fixture.Deployment(3), lost, changed)
	s.pass(t)
	if set := s.all()["pool-a"]; !metav1.IsControlledBy(set, s.deployment()) {
		t.Error("the set without an owner was not adopted")
	}
	if set := s.all()["pool-b"]; len(set.OwnerReferences) > 0 || set.Spec.Replicas != 2 {
		t.Errorf("the set that does not match was not released: %+v", set)
	}
	if got := s.progress(); got.Reason != "" {
		t.Errorf("condition before the sets of the deployment are known: %+v", got)
	}
	s.pass(t)
	if len(s.all()) != 2 || s.progress().Reason != "NewMachineSetAvailable" {
		t.Errorf("sets %q, progress %+v", slices.Sorted(maps.Keys(s.all())), s.progress())
	}
}

func TestMachineDeployment_AdoptsNothing(t *testing.T) {
	for reason, prepare := range map[string]func(*server){
		"by a deployment that is being deleted": func(s *server) {
			s.Client = interceptor.NewClient(s.live, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
					err := c.Get(ctx, key, object, opts...)
					object.SetDeletionTimestamp(nil) // the cache does not show the deletion
					return err
				},
			})
			must(s.live.Delete(context.Background(), s.deployment()))
		},
		"without a live reader": func(s *server) { s.Live = nil; s.change(fixture.Paused) },
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(
				fixture.Deployment(3, func(d *v1alpha1.MachineDeployment) { d.Finalizers = []string{v1alpha1.FinalizerMCM} }),
				fixture.Set("a", 3, func(set *v1alpha1.MachineSet) { set.OwnerReferences = nil }),
			)
			prepare(s)
			s.pass(t)
			if owners := s.only(t).OwnerReferences; len(owners) > 0 {
				t.Errorf("the set was adopted: %v", owners)
			}
		})
	}
}

func TestMachineDeployment_DeletionDeletesSetsFirst(t *testing.T) {
	s := newServer(fixture.Deployment(3))
	s.pass(t)
	must(s.live.Delete(t.Context(), s.deployment()))
	s.pass(t)
	set := s.only(t)
	if set.DeletionTimestamp.IsZero() || s.deployment().DeletionTimestamp.IsZero() {
		t.Fatal("the set or the deployment is not being deleted")
	}
	s.pass(t)
	set.Finalizers = nil
	must(s.live.Update(t.Context(), set))
	s.pass(t)
	if err := s.live.Get(t.Context(), request.NamespacedName, &v1alpha1.MachineDeployment{}); !apierrors.IsNotFound(err) {
		t.Errorf("the deployment was not removed: %v", err)
	}
	s.pass(t)
}

// TestMachineDeployment_InvalidSpecsAreReported checks that an invalid deployment is reported in the status and in one event, and that no
// set is created.
func TestMachineDeployment_InvalidSpecsAreReported(t *testing.T) {
	for reason, test := range map[string]struct {
		change change
		reason string
		field  string
	}{
		"nil selector":   {func(d *v1alpha1.MachineDeployment) { d.Spec.Selector = nil }, "InvalidSpec", "spec.selector: "},
		"empty selector": {func(d *v1alpha1.MachineDeployment) { d.Spec.Selector = &metav1.LabelSelector{} }, "SelectingAll", "spec.selector: "},
		"no class":       {func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = "" }, "InvalidSpec", "spec.template.spec.class.name: "},
		"another surge":  {fixture.Rolling("many", "1"), "InvalidSpec", "spec.strategy.rollingUpdate.maxSurge: "},
		"selector of another deployment": {
			func(d *v1alpha1.MachineDeployment) { d.Spec.Selector.MatchLabels = map[string]string{"name": "other"} }, "InvalidSpec", "spec.template.metadata.labels: ",
		},
		"malformed selector": {
			func(d *v1alpha1.MachineDeployment) {
				d.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "name", Operator: "Resembles"}}
			}, "InvalidSpec", "spec.selector: ",
		},
		"negative replicas":    {func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = -3 }, "InvalidSpec", "spec.replicas: "},
		"negative surge":       {fixture.Rolling("-1", "1"), "InvalidSpec", "spec.strategy.rollingUpdate.maxSurge: "},
		"negative percentage":  {fixture.Rolling("1", "-10%"), "InvalidSpec", "spec.strategy.rollingUpdate.maxUnavailable: "},
		"huge percentage":      {fixture.Rolling("5000000000000000000%", "0"), "InvalidSpec", "spec.strategy.rollingUpdate.maxSurge: "},
		"no number at all":     {fixture.Rolling("1", "9223372036854775807%"), "InvalidSpec", "spec.strategy.rollingUpdate.maxUnavailable: "},
		"negative deadline":    {func(d *v1alpha1.MachineDeployment) { d.Spec.ProgressDeadlineSeconds = ptr.To(int32(-1)) }, "InvalidSpec", "spec.progressDeadlineSeconds: "},
		"negative history":     {func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(-1)) }, "InvalidSpec", "spec.revisionHistoryLimit: "},
		"negative time":        {func(d *v1alpha1.MachineDeployment) { d.Spec.MinReadySeconds = -1 }, "InvalidSpec", "spec.minReadySeconds: "},
		"malformed percentage": {fixture.Rolling("ten%", "1"), "InvalidSpec", "spec.strategy.rollingUpdate.maxSurge: "},
		"another strategy":     {func(d *v1alpha1.MachineDeployment) { d.Spec.Strategy.Type = "Slow" }, "InvalidSpec", "spec.strategy.type: "},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(fixture.Deployment(3, test.change))
			for range 3 {
				s.pass(t)
			}
			got := s.progress()
			if got.Reason != test.reason || got.Status != v1alpha1.ConditionFalse || !strings.HasPrefix(got.Message, test.field) {
				t.Errorf("got %+v", got)
			}
			if diff := cmp.Diff([]string{test.reason + ": " + got.Message}, s.lines); diff != "" {
				t.Errorf("events: want - got +\n%s", diff)
			}
			if len(s.all()) > 0 {
				t.Error("a set was created")
			}
			s.change(func(d *v1alpha1.MachineDeployment) { d.Spec = fixture.Deployment(3).Spec })
			s.pass(t)
			s.only(t)
			if got := s.progress(); got.Reason != "NewMachineSetCreated" {
				t.Errorf("condition after the deployment was corrected: %+v", got)
			}
		})
	}
}

func TestMachineDeployment_UnsupportedInPlaceUpdateIsReported(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.InPlace("0", "1"), fixture.OfClass("b")), fixture.Set("a", 3))
	s.Target = nil
	for range 3 {
		s.pass(t)
	}
	set := s.only(t)
	if set.Spec.Replicas != 3 {
		t.Errorf("the set has %d replicas", set.Spec.Replicas)
	}
	if got := s.progress(); got.Reason != "NotSupported" {
		t.Errorf("got %+v", got)
	}
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 7 })
	s.pass(t)
	if set := s.only(t); set.Spec.Replicas != 7 || s.progress().Reason != "NotSupported" {
		t.Errorf("%d replicas, progress %+v", set.Spec.Replicas, s.progress())
	}
	lines := slices.DeleteFunc(slices.Clone(s.lines), func(line string) bool { return !strings.HasPrefix(line, "NotSupported: ") })
	if len(lines) != 1 {
		t.Errorf("events %q, want one about the strategy", s.lines)
	}
}

func TestStatus_SelectorAloneCausesNoWrite(t *testing.T) {
	s := newServer(fixture.Deployment(3))
	s.pass(t)
	s.pass(t)
	deployment := s.deployment()
	if deployment.Status.Selector != "name=pool" {
		t.Fatalf("selector %q in the status", deployment.Status.Selector)
	}
	deployment.Status.Selector = "" // dropped under MCM's CRDs
	must(s.live.Status().Update(t.Context(), deployment))
	s.writes = nil
	s.pass(t)
	if len(s.writes) > 0 {
		t.Errorf("writes: %q", s.writes)
	}
}

// TestMachineDeployment_EachProblemIsReported checks that a reported problem does not hide a new one.
func TestMachineDeployment_EachProblemIsReported(t *testing.T) {
	s := newServer(fixture.Deployment(1), fixture.Deployment(1, func(d *v1alpha1.MachineDeployment) { d.Name, d.UID = "other", "uid-of-other" }))
	s.pass(t)
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Strategy.Type = "Slow" })
	s.pass(t)
	var warned []string
	for _, line := range s.lines {
		if reason, _, _ := strings.Cut(line, ": "); reason == "SelectorOverlap" || reason == "InvalidSpec" {
			warned = append(warned, reason)
		}
	}
	if diff := cmp.Diff([]string{"SelectorOverlap", "InvalidSpec"}, warned); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestMachineDeployment_EmptySelectorOverlapsWithNothing checks that a deployment with an empty selector, which does nothing,
// overlaps with no other deployment.
func TestMachineDeployment_EmptySelectorOverlapsWithNothing(t *testing.T) {
	for reason, test := range map[string]struct {
		selector *metav1.LabelSelector
		name     string
	}{
		"other machines": {&metav1.LabelSelector{}, "greedy"},
		"the same":       {&metav1.LabelSelector{}, fixture.Pool},
		"no selector":    {nil, "greedy"},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(fixture.Deployment(1), fixture.Deployment(1, func(d *v1alpha1.MachineDeployment) {
				d.Name, d.UID, d.Spec.Selector = "greedy", "uid-of-greedy", test.selector
				d.Spec.Template.Labels = map[string]string{"name": test.name}
			}))
			s.pass(t)
			if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentSelectorOverlap); at >= 0 {
				t.Errorf("got %+v", s.deployment().Status.Conditions[at])
			}
		})
	}
}

// TestMachineDeployment_MalformedAnnotations checks that a rollout continues if users wrote invalid or huge numbers into
// annotations.
func TestMachineDeployment_MalformedAnnotations(t *testing.T) {
	garbage := []string{"", "many", "-3", "99999999999999999999", "1.5", "0x10", "\x00"}
	for _, value := range garbage {
		t.Run(value, func(t *testing.T) {
			spoilt := func(set *v1alpha1.MachineSet) {
				for _, key := range []string{v1alpha1.AnnotationKeyDesiredReplicas, v1alpha1.AnnotationKeyMaxReplicas, v1alpha1.AnnotationKeyRevision, v1alpha1.AnnotationKeyRevisionHistory} {
					set.Annotations[key] = value
				}
			}
			s := newServer(fixture.Deployment(2, fixture.Rolling("1", "0"), fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) {
				d.Annotations = map[string]string{
					v1alpha1.AnnotationKeyRevision: value, v1alpha1.AnnotationKeyTriggerDeletion: value + "~" + value + ",,~",
					v1alpha1.AnnotationKeyLastReplicaChange: value,
				}
			}), fixture.Set("a", 2, spoilt))
			for range 12 {
				s.pass(t)
				for name, set := range s.all() {
					n := set.Spec.Replicas
					s.setSet(t, name, func(set *v1alpha1.MachineSet) {
						set.Status.ObservedGeneration = set.Generation
						fixture.Reports(n, n)(set)
					})
				}
			}
			if got := s.progress().Reason; got != v1alpha1.DeploymentReasonComplete {
				t.Errorf("progress: %s; sets %v", got, slices.Sorted(maps.Keys(s.all())))
			}
		})
	}
}
