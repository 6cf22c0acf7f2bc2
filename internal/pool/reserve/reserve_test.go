package reserve_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// deployment returns a deployment with the given replicas, and excess replicas in the field unless they are
// empty.
func deployment(replicas int32, excess string) *v1alpha1.MachineDeployment {
	d := fixture.Deployment(replicas)
	if excess != "" {
		d.Spec.ExcessReplicas = ptr.To(intstr.Parse(excess))
	}
	return d
}

func TestExcess(t *testing.T) {
	t.Parallel()
	for reason, test := range map[string]struct {
		replicas               int32
		field, annotation, max string
		want, setting          int32
	}{
		"nothing is asked for":               {replicas: 3},
		"a number":                           {replicas: 3, field: "2", want: 2, setting: 2},
		"a percentage is rounded up":         {replicas: 3, field: "50%", want: 2, setting: 2},
		"a percentage of none":               {replicas: 0, field: "50%"},
		"a number without replicas":          {replicas: 0, field: "2", want: 2, setting: 2},
		"an annotation":                      {replicas: 3, annotation: "2", want: 2, setting: 2},
		"an annotation, in per cent":         {replicas: 4, annotation: "25%", want: 1, setting: 1},
		"the field outranks it":              {replicas: 3, field: "0", annotation: "2"},
		"an invalid value is ignored":        {replicas: 3, annotation: "two"},
		"a negative value is ignored":        {replicas: 3, annotation: "-1"},
		"the autoscaler's maximum":           {replicas: 3, field: "2", max: "4", want: 1, setting: 2},
		"the maximum is reached":             {replicas: 3, field: "2", max: "3", setting: 2},
		"the replicas are above it":          {replicas: 5, field: "2", max: "3", setting: 2},
		"a maximum that is not a number":     {replicas: 3, field: "2", max: "x", want: 2, setting: 2},
		"a sum beyond what a field can hold": {replicas: 1<<31 - 2, field: "5", want: 1, setting: 1},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			d := deployment(test.replicas, test.field)
			d.Annotations = map[string]string{}
			if test.annotation != "" {
				d.Annotations[v1alpha1.AnnotationKeyExcessReplicas] = test.annotation
			}
			if test.max != "" {
				d.Annotations[v1alpha1.AnnotationKeyAutoscalerMaxSize] = test.max
			}
			if is := reserve.Excess(d); is != test.want {
				t.Errorf("the excess is %d, want %d", is, test.want)
			}
			if is := reserve.Requested(d); is != test.setting {
				t.Errorf("%d requested, want %d", is, test.setting)
			}
			if is := reserve.Desired(d); is != test.replicas+test.want {
				t.Errorf("%d machines desired, want %d", is, test.replicas+test.want)
			}
		})
	}
}

// setWith returns a set of a class with the given replicas and excess replicas.
func setWith(class string, replicas, excess int32) *v1alpha1.MachineSet {
	set := fixture.Set(class, replicas, fixture.WithUID)
	reserve.Assign(set, fixture.Deployment(replicas), excess)
	return set
}

func TestPlan(t *testing.T) {
	t.Parallel()
	const none = -1
	for reason, test := range map[string]struct {
		replicas     int32
		excess       string
		old, current [2]int32 // replicas and excess before
		planned      [2]int32 // new replicas of the old and the current set, or none
		named        int
		wantOld      int32
		wantCurrent  int32
	}{
		"the first set":   {3, "2", [2]int32{0, 0}, [2]int32{none, 0}, [2]int32{none, 5}, 0, 0, 2},
		"nothing changes": {3, "2", [2]int32{0, 0}, [2]int32{5, 2}, [2]int32{none, none}, 0, 0, 2},
		"the replicas grow before the machines exist": {5, "2", [2]int32{0, 0}, [2]int32{5, 2}, [2]int32{none, none}, 0, 0, 0},
		"they grow by one":                            {4, "2", [2]int32{0, 0}, [2]int32{5, 2}, [2]int32{none, none}, 0, 0, 1},
		"machines come after":                         {5, "2", [2]int32{0, 0}, [2]int32{5, 2}, [2]int32{none, 7}, 0, 0, 2},
		"the replicas shrink":                         {2, "2", [2]int32{0, 0}, [2]int32{5, 2}, [2]int32{none, 4}, 0, 0, 2},
		"the excess is removed":                       {3, "0", [2]int32{0, 0}, [2]int32{5, 2}, [2]int32{none, 3}, 0, 0, 0},
		"a rollout begins":                            {3, "2", [2]int32{5, 2}, [2]int32{none, 0}, [2]int32{none, 1}, 0, 2, 1},
		"an old machine of the reserve is deleted":    {3, "2", [2]int32{5, 2}, [2]int32{1, 1}, [2]int32{4, none}, 0, 1, 1},
		"the next one":                                {3, "2", [2]int32{4, 1}, [2]int32{2, 2}, [2]int32{3, none}, 0, 0, 2},
		"then machines for pods are replaced":         {3, "2", [2]int32{3, 0}, [2]int32{2, 2}, [2]int32{none, 3}, 0, 0, 2},
		"the surge is none":                           {3, "2", [2]int32{5, 2}, [2]int32{0, 0}, [2]int32{4, none}, 0, 1, 0},
		"a named machine is deleted":                  {2, "2", [2]int32{5, 2}, [2]int32{1, 1}, [2]int32{4, none}, 1, 2, 1},
		"the replicas grow during a rollout":          {5, "2", [2]int32{4, 1}, [2]int32{2, 2}, [2]int32{none, none}, 0, 1, 0},
		"a paused deployment gets a reserve":          {3, "2", [2]int32{3, 0}, [2]int32{0, 0}, [2]int32{5, none}, 0, 2, 0},
		"the old set has the whole reserve":           {3, "0", [2]int32{5, 2}, [2]int32{0, 0}, [2]int32{3, none}, 0, 0, 0},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			old := setWith("a", test.old[0], test.old[1])
			s := reserve.Sets{Deployment: deployment(test.replicas, test.excess), Old: []*v1alpha1.MachineSet{old}, Planned: map[*v1alpha1.MachineSet]int32{}}
			if test.current[0] != none {
				s.Current = setWith("b", test.current[0], test.current[1])
			}
			if test.planned[0] != none {
				s.Planned[old] = test.planned[0]
			}
			if test.planned[1] != none {
				s.Planned[s.Current] = test.planned[1]
			}
			for i := range test.named {
				s.Named = append(s.Named, fixture.Running(old, fmt.Sprint("named", i)))
			}
			shares := reserve.Plan(s)
			if diff := cmp.Diff([2]int32{test.wantOld, test.wantCurrent}, [2]int32{shares[old], shares[s.Current]}); diff != "" {
				t.Errorf("excess of the old and the current set, want - got +:\n%s", diff)
			}
		})
	}
}

// TestPlan_InPlaceUpdate checks that Machines that move between sets keep their place in the reserve.
func TestPlan_InPlaceUpdate(t *testing.T) {
	t.Parallel()
	old, current := setWith("a", 5, 2), setWith("b", 1, 0)
	marked := machine(old, "marked", 4, reserve.NoSchedule)
	s := reserve.Sets{
		Deployment: deployment(3, "2"), Current: current, Old: []*v1alpha1.MachineSet{old},
		Planned:  map[*v1alpha1.MachineSet]int32{old: 4},
		Machines: map[string][]*v1alpha1.Machine{old.Name: {machine(old, "a", 1, reserve.None), marked}},
	}
	shares := reserve.Plan(s)
	if shares[old] != 1 || shares[current] != 1 {
		t.Errorf("the old set has %d and the current one %d, want 1 and 1", shares[old], shares[current])
	}
}

// machine returns a Machine of a set that was created age seconds after noon.
func machine(set *v1alpha1.MachineSet, name string, age int, mark reserve.Mark) *v1alpha1.Machine {
	m := fixture.Running(set, name)
	m.Name, m.UID, m.CreationTimestamp = name, types.UID(name), metav1.NewTime(fixture.Noon.Add(time.Duration(age)*time.Second))
	m.Spec = *reserve.Marked(&m.Spec, mark)
	return m
}

func TestMembers(t *testing.T) {
	t.Parallel()
	in, out := reserve.NoSchedule, reserve.None
	leaves := func(m *v1alpha1.Machine) { m.DeletionTimestamp = &metav1.Time{Time: fixture.Noon} }
	fails := func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = v1alpha1.MachineFailed }
	for reason, test := range map[string]struct {
		replicas, excess int32
		marks            []reserve.Mark // of a, b, c, … from the oldest to the newest
		change           map[string]func(*v1alpha1.Machine)
		refuse           string
		want             []string
		created, born    int
	}{
		"the newest":                          {replicas: 5, excess: 2, marks: []reserve.Mark{out, out, out, out, out}, want: []string{"d", "e"}},
		"they stay":                           {replicas: 5, excess: 2, marks: []reserve.Mark{out, in, out, out, in}, want: []string{"b", "e"}},
		"no reserve":                          {replicas: 3, marks: []reserve.Mark{out, out, out}},
		"the oldest leaves first":             {replicas: 5, excess: 1, marks: []reserve.Mark{out, out, out, in, in}, want: []string{"e"}},
		"all leave before others are created": {replicas: 7, excess: 2, marks: []reserve.Mark{out, out, out, in, in}, created: 2, born: 2},
		"surplus machines stay until they are deleted": {replicas: 3, excess: 0, marks: []reserve.Mark{out, out, out, in, in}, want: []string{"d", "e"}},
		"too few machines": {replicas: 5, excess: 2, marks: []reserve.Mark{out, out}, created: 3, born: 2},
		"a failed machine is replaced by another": {
			replicas: 5, excess: 2, marks: []reserve.Mark{out, out, out, in, in}, change: map[string]func(*v1alpha1.Machine){"a": fails},
			want: []string{"e"}, created: 1, born: 1,
		},
		"a deleted machine is replaced by another": {
			replicas: 5, excess: 2, marks: []reserve.Mark{out, out, out, in, in}, change: map[string]func(*v1alpha1.Machine){"b": leaves},
			want: []string{"e"}, created: 1, born: 1,
		},
		"a machine of the reserve fails": {
			replicas: 5, excess: 2, marks: []reserve.Mark{out, out, out, in, in}, change: map[string]func(*v1alpha1.Machine){"e": fails},
			want: []string{"d"}, created: 1, born: 1,
		},
		"a preserved machine does not join": {replicas: 5, excess: 2, marks: []reserve.Mark{out, out, out, out, out}, refuse: "e", want: []string{"c", "d"}},
		"all are in excess":                 {replicas: 2, excess: 2, marks: []reserve.Mark{out}, want: []string{"a"}, created: 1, born: 1},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			set := setWith("a", test.replicas, test.excess)
			var machines []*v1alpha1.Machine
			for i, mark := range test.marks {
				m := machine(set, string(rune('a'+i)), i, mark)
				if change := test.change[m.Name]; change != nil {
					change(m)
				}
				machines = append(machines, m)
			}
			slices.Reverse(machines)
			members := reserve.Of(set, machines, func(m *v1alpha1.Machine) bool { return m.Name != test.refuse })
			var is []string
			for uid := range members {
				is = append(is, string(uid))
			}
			slices.Sort(is)
			if diff := cmp.Diff(test.want, is); diff != "" {
				t.Errorf("want - got +:\n%s", diff)
			}
			if born := members.NewMembers(set, machines, test.created); born != test.born {
				t.Errorf("of %d machines, %d are created in excess, want %d", test.created, born, test.born)
			}
		})
	}
}

// TestMarked checks that a mark is idempotent, changes nothing else, and can be removed completely.
func TestMarked(t *testing.T) {
	t.Parallel()
	template := &v1alpha1.MachineSpec{}
	template.NodeTemplateSpec.Labels = map[string]string{"a": "b"}
	template.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "theirs", Effect: corev1.TaintEffectNoSchedule}}
	before := template.DeepCopy()
	for _, mark := range []reserve.Mark{reserve.None, reserve.NoSchedule, reserve.NoExecute} {
		once := reserve.Marked(template, mark)
		if diff := cmp.Diff(once, reserve.Marked(once, mark)); diff != "" {
			t.Errorf("%s: marking twice differs from marking once:\n%s", mark, diff)
		}
		if is := reserve.MarkOf(once); is != mark {
			t.Errorf("the mark is %q, want %q", is, mark)
		}
		_, kept := once.NodeTemplateSpec.Annotations[v1alpha1.AnnotationKeyScaleDownDisabled]
		if kept != (mark != reserve.None) {
			t.Errorf("%s: protected from autoscalers: %t", mark, kept)
		}
		desired := map[reserve.Mark]int{reserve.None: 1, reserve.NoSchedule: 2, reserve.NoExecute: 3}[mark]
		if is := len(once.NodeTemplateSpec.Spec.Taints); is != desired {
			t.Errorf("%s: %d taints, want %d", mark, is, desired)
		}
	}
	if diff := cmp.Diff(before, template); diff != "" {
		t.Errorf("the template changed:\n%s", diff)
	}
}

func TestStatus_ExcessIsCountedSeparately(t *testing.T) {
	t.Parallel()
	type numbers struct{ replicas, updated, ready, available, excess int32 }
	for reason, test := range map[string]struct{ given, want numbers }{
		"all exist":                   {numbers{5, 5, 5, 5, 0}, numbers{3, 3, 3, 3, 2}},
		"none exist":                  {numbers{}, numbers{}},
		"too few exist":               {numbers{2, 2, 2, 2, 0}, numbers{2, 2, 2, 2, 0}},
		"one of them is in excess":    {numbers{4, 4, 4, 4, 0}, numbers{3, 3, 3, 3, 1}},
		"some are not ready":          {numbers{5, 5, 2, 2, 0}, numbers{3, 3, 2, 2, 2}},
		"a surge":                     {numbers{6, 1, 5, 5, 0}, numbers{4, 0, 3, 3, 2}},
		"the last old machine exists": {numbers{5, 4, 5, 5, 0}, numbers{3, 2, 3, 3, 2}},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			status := &v1alpha1.MachineDeploymentStatus{Replicas: test.given.replicas, UpdatedReplicas: test.given.updated, ReadyReplicas: test.given.ready, AvailableReplicas: test.given.available}
			reserve.Separate(status, deployment(3, "2"))
			is := numbers{status.Replicas, status.UpdatedReplicas, status.ReadyReplicas, status.AvailableReplicas, status.ExcessReplicas}
			if is != test.want {
				t.Errorf("got %+v, want %+v", is, test.want)
			}
		})
	}
}
