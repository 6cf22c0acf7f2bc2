package autoscaler

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
)

var now = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

// deployment returns a MachineDeployment with this many replicas and with annotations given as key-value pairs.
func deployment(replicas int32, annotations ...string) *v1alpha1.MachineDeployment {
	d := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "machines", Name: "pool", Annotations: map[string]string{}}}
	d.Spec.Replicas, d.Spec.Template.Spec.Class.Name = replicas, "pool"
	for i := 0; i < len(annotations); i += 2 {
		d.Annotations[annotations[i]] = annotations[i+1]
	}
	return d
}

func machine(change func(*v1alpha1.Machine)) *v1alpha1.Machine {
	m := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}
	m.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	change(m)
	return m
}

func same(*v1alpha1.Machine) {}

func leaves(m *v1alpha1.Machine) { m.DeletionTimestamp = &metav1.Time{Time: now} }

func phase(is v1alpha1.MachinePhase) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = is }
}

// preserved preserves a Machine for a while.
func preserved(m *v1alpha1.Machine) {
	m.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: now.Add(time.Hour)}
}

// cannotBeMade marks the creation of a Machine as failed with a code.
func cannotBeMade(code string) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff
		m.Status.LastOperation = v1alpha1.LastOperation{Type: v1alpha1.MachineOperationCreate, State: v1alpha1.MachineStateFailed, ErrorCode: code, Description: "no"}
	}
}

// TestBounds checks that a deployment with a maximum is a group, and that invalid bounds are reported.
func TestBounds(t *testing.T) {
	for name, s := range map[string]struct {
		of    *v1alpha1.MachineDeployment
		want  Bounds
		wrong string
	}{
		"none":                      {deployment(1, AnnotationMinSize, "1"), Bounds{}, ErrNoGroup.Error()},
		"both":                      {deployment(1, AnnotationMinSize, "1", AnnotationMaxSize, "5"), Bounds{1, 5}, ""},
		"no minimum":                {deployment(1, AnnotationMaxSize, "5"), Bounds{0, 5}, ""},
		"no number":                 {deployment(1, AnnotationMaxSize, "many"), Bounds{}, `"many" is not a number`},
		"below zero":                {deployment(1, AnnotationMinSize, "-1", AnnotationMaxSize, "5"), Bounds{}, `"-1" is not a number greater than or equal to 0`},
		"too large":                 {deployment(1, AnnotationMaxSize, "2147483648"), Bounds{}, "is not a number"},
		"minimum above the maximum": {deployment(1, AnnotationMinSize, "6", AnnotationMaxSize, "5"), Bounds{}, "6 exceeds"},
	} {
		got, err := BoundsOf(s.of)
		if got != s.want || (err == nil) != (s.wrong == "") || err != nil && !strings.Contains(err.Error(), s.wrong) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestInstance_StatesForAutoscaler checks the instances reported to the autoscaler (rules G5, G6 and G9 of Gardener's autoscaler).
func TestInstance_StatesForAutoscaler(t *testing.T) {
	const running, creating, deleting = autoscalerpb.InstanceStatus_INSTANCE_STATE_RUNNING, autoscalerpb.InstanceStatus_INSTANCE_STATE_CREATING, autoscalerpb.InstanceStatus_INSTANCE_STATE_DELETING
	hasVM := func(m *v1alpha1.Machine) { m.Spec.ProviderID = "sim:///vm-1" }
	joined := &corev1.Node{Spec: corev1.NodeSpec{ProviderID: "cloud:///zone/vm-1"}}
	for name, s := range map[string]struct {
		change func(*v1alpha1.Machine)
		node   *corev1.Node
		named  bool
		id     string
		state  autoscalerpb.InstanceStatus_InstanceState
		class  int32
	}{
		"just created":                     {phase(""), nil, false, "requested://m1", creating, 0},
		"no node yet":                      {func(m *v1alpha1.Machine) { hasVM(m); phase(v1alpha1.MachinePending)(m) }, nil, false, "sim:///vm-1", creating, 0},
		"with a node":                      {hasVM, joined, false, "cloud:///zone/vm-1", running, 0},
		"with a node that has no ID":       {hasVM, &corev1.Node{}, false, "", 0, 0},
		"marked for deletion":              {hasVM, joined, true, "cloud:///zone/vm-1", deleting, 0},
		"being deleted":                    {leaves, joined, false, "cloud:///zone/vm-1", deleting, 0},
		"about to be replaced":             {phase(v1alpha1.MachineFailed), nil, false, "requested://m1", deleting, 0},
		"failed and preserved":             {func(m *v1alpha1.Machine) { phase(v1alpha1.MachineFailed)(m); preserved(m) }, joined, false, "cloud:///zone/vm-1", running, 0},
		"no capacity":                      {cannotBeMade("ResourceExhausted"), nil, false, "requested://m1", creating, outOfResources},
		"an invalid class":                 {cannotBeMade("InvalidArgument"), nil, false, "requested://m1", creating, otherError},
		"a transient error":                {cannotBeMade("Unavailable"), nil, false, "requested://m1", creating, 0},
		"a missing class":                  {cannotBeMade(""), nil, false, "requested://m1", creating, 0},
		"no capacity, marked for deletion": {cannotBeMade("ResourceExhausted"), nil, true, "requested://m1", deleting, 0},
	} {
		got := Instance(machine(s.change), s.node, s.named, now)
		if got.GetId() != s.id || got.GetStatus().GetInstanceState() != s.state || got.GetStatus().GetErrorInfo().GetInstanceErrorClass() != s.class {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestDelete checks that deleting Machines changes the deployment once, and that rejected requests change
// nothing (rules G7, G8 and G9 of Gardener's autoscaler).
func TestDelete(t *testing.T) {
	at := now.Format(time.RFC3339)
	rollout := func(reason string) func(*v1alpha1.MachineDeployment) {
		return func(d *v1alpha1.MachineDeployment) {
			d.Status.Replicas, d.Status.UpdatedReplicas = 4, 1
			d.Status.Conditions = []v1alpha1.MachineDeploymentCondition{{Type: v1alpha1.MachineDeploymentProgressing, Status: v1alpha1.ConditionTrue, Reason: reason}}
		}
	}
	none := func(*v1alpha1.MachineDeployment) {}
	for name, s := range map[string]struct {
		given    func(*v1alpha1.MachineDeployment)
		machine  func(*v1alpha1.Machine)
		refused  string
		names    string
		replicas int32
	}{
		"one":                        {none, same, "", "m1~" + at, 2},
		"in addition to another one": {func(d *v1alpha1.MachineDeployment) { d.Annotations[v1alpha1.AnnotationKeyTriggerDeletion] = "m0~" + at }, same, "", "m0~" + at + ",m1~" + at, 2},
		"again":                      {func(d *v1alpha1.MachineDeployment) { d.Annotations[v1alpha1.AnnotationKeyTriggerDeletion] = "m1~" + at }, same, "", "m1~" + at, 3},
		"being deleted":              {none, leaves, "", "", 3},
		"failed":                     {none, phase(v1alpha1.MachineFailed), "", "", 3},
		"preserved":                  {none, preserved, "machine m1 is preserved", "", 3},
		"at the minimum":             {func(d *v1alpha1.MachineDeployment) { d.Annotations[AnnotationMinSize] = "3" }, same, "below the minimum of 3", "", 3},
		"during a rollout":           {rollout(v1alpha1.DeploymentReasonUpdated), same, "a rollout of the deployment is in progress", "", 3},
		"in a paused rollout":        {rollout(v1alpha1.DeploymentReasonPaused), same, "", "m1~" + at, 2},
		"after a rollout that left a preserved machine": {rollout(v1alpha1.DeploymentReasonComplete), same, "", "m1~" + at, 2},
		"no longer a group":                             {func(d *v1alpha1.MachineDeployment) { delete(d.Annotations, AnnotationMaxSize) }, same, "not a node group", "", 3},
	} {
		d := deployment(3, AnnotationMaxSize, "5")
		s.given(d)
		changed, err := Delete(d, []*v1alpha1.Machine{machine(s.machine)}, now)
		refused, isRefused := errors.AsType[Refused](err)
		if isRefused != (s.refused != "") || !strings.Contains(string(refused), s.refused) || changed != (d.Spec.Replicas != 3) {
			t.Errorf("%s: %v, %v", name, changed, err)
		}
		if got := d.Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; got != s.names || d.Spec.Replicas != s.replicas {
			t.Errorf("%s: %q are marked, with %d replicas", name, got, d.Spec.Replicas)
		}
		if changed && d.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] != at {
			t.Errorf("%s: the time is missing: %v", name, d.Annotations)
		}
	}
}

// TestGroup_SizeStaysWithinBounds checks that no group leaves its bounds, and that decreasing the size never removes an existing
// Machine.
func TestGroup_SizeStaysWithinBounds(t *testing.T) {
	for name, s := range map[string]struct {
		change  func(*v1alpha1.MachineDeployment) error
		want    int32
		refused string
	}{
		"up to the maximum":                      {func(d *v1alpha1.MachineDeployment) error { return Increase(d, 2) }, 5, ""},
		"above the maximum":                      {func(d *v1alpha1.MachineDeployment) error { return Increase(d, 3) }, 3, "exceed the maximum of 5"},
		"an overflow":                            {func(d *v1alpha1.MachineDeployment) error { return Increase(d, 2147483647) }, 3, "exceed the maximum of 5"},
		"increase by zero":                       {func(d *v1alpha1.MachineDeployment) error { return Increase(d, 0) }, 3, "must be greater than 0"},
		"decrease by machines that do not exist": {func(d *v1alpha1.MachineDeployment) error { return Decrease(d, -1, 2) }, 2, ""},
		"decrease by existing machines":          {func(d *v1alpha1.MachineDeployment) error { return Decrease(d, -2, 2) }, 3, "2 of 3 machines already exist"},
		"decrease by zero":                       {func(d *v1alpha1.MachineDeployment) error { return Decrease(d, 0, 0) }, 3, "must be less than 0"},
	} {
		d := deployment(3, AnnotationMaxSize, "5")
		err := s.change(d)
		if d.Spec.Replicas != s.want || (err == nil) != (s.refused == "") || err != nil && !strings.Contains(err.Error(), s.refused) {
			t.Errorf("%s: %d replicas, %v", name, d.Spec.Replicas, err)
		}
	}
}

// TestTemplate checks the template of a new node (rule G10 of Gardener's autoscaler), without which a
// deployment is not a group.
func TestTemplate(t *testing.T) {
	class := &v1alpha1.MachineClass{NodeTemplate: &v1alpha1.NodeTemplate{
		InstanceType: "large", Region: "here", Zone: "here-1",
		Capacity:        corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), "gpu": resource.MustParse("1")},
		VirtualCapacity: corev1.ResourceList{"example.com/seats": resource.MustParse("7")},
	}}
	d := deployment(0, AnnotationMaxSize, "5")
	own := &d.Spec.Template.Spec.NodeTemplateSpec
	own.Labels, own.Spec.Taints = map[string]string{"worker.gardener.cloud/pool": "pool"}, []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	node, err := Template(d, class)
	if err != nil {
		t.Fatal(err)
	}
	for resource, want := range map[corev1.ResourceName]string{"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1", "example.com/seats": "7", "pods": "110", "gpu": "0"} {
		if got := node.Status.Allocatable[resource]; got.String() != want {
			t.Errorf("the node has %s %s, want %s", got.String(), resource, want)
		}
	}
	for label, want := range map[string]string{
		"worker.gardener.cloud/pool": "pool", corev1.LabelTopologyZone: "here-1", corev1.LabelTopologyRegion: "here",
		corev1.LabelInstanceTypeStable: "large", corev1.LabelArchStable: "amd64",
	} {
		if node.Labels[label] != want {
			t.Errorf("the label %s is %q, want %q", label, node.Labels[label], want)
		}
	}
	if len(node.Spec.Taints) != 1 {
		t.Errorf("the taints are %v", node.Spec.Taints)
	}
	for name, bad := range map[string]*v1alpha1.MachineClass{
		"does not exist":   nil,
		"no nodeTemplate ": {},
		"no nodeTemplate":  {NodeTemplate: &v1alpha1.NodeTemplate{Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}},
	} {
		if group, err := Group(d, bad); group != nil || err == nil || !strings.Contains(err.Error(), strings.TrimSpace(name)) {
			t.Errorf("%s: %v, %v", name, group, err)
		}
	}
}

// TestOptions checks that annotations override the defaults for all groups, in both formats (rule G11 of
// Gardener's autoscaler). Older autoscalers exit if a duration in the older format is missing.
func TestOptions(t *testing.T) {
	defaults := &autoscalerpb.NodeGroupAutoscalingOptions{
		ScaleDownUtilizationThreshold: 0.5, ScaleDownUnneededDuration: durationpb.New(time.Minute),
		ScaleDownUnneededTime: &autoscalerpb.KubernetesDuration{Duration: int64(time.Minute)}, ScaleDownUnreadyTime: &autoscalerpb.KubernetesDuration{Duration: 1},
	}
	got, err := Options(deployment(1, AnnotationUtilization, "0.7", AnnotationUnneeded, "5m", AnnotationGPUUtilization, "2", AnnotationProvision, "soon"), defaults)
	for _, wrong := range []string{`"2" is not between 0 and 1`, `"soon" is not a duration`} {
		if err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("the error is %v, want %q", err, wrong)
		}
	}
	older, newer := time.Duration(got.GetScaleDownUnneededTime().GetDuration()), got.GetScaleDownUnneededDuration().AsDuration()
	if got.GetScaleDownUtilizationThreshold() != 0.7 || older != 5*time.Minute || newer != older || got.GetScaleDownUnreadyTime().GetDuration() != 1 {
		t.Errorf("the options are %v", got)
	}
	if defaults.GetScaleDownUtilizationThreshold() != 0.5 {
		t.Error("the defaults were changed")
	}
}
