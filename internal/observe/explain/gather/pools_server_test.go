package gather

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// deployment creates a deployment with its set and one running Machine.
func (s *server) deployment() *v1alpha1.MachineDeployment {
	labels := map[string]string{"name": "pool"}
	template := v1alpha1.MachineTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool-v1"}},
	}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	deployment := put(s, s.control, &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "pool"},
		Spec:       v1alpha1.MachineDeploymentSpec{Replicas: 1, Selector: selector, Template: template},
	}, func(d *v1alpha1.MachineDeployment) {
		d.Status = v1alpha1.MachineDeploymentStatus{ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	})
	set := put(s, s.control, &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: "pool-a",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, v1alpha1.SchemeGroupVersion.WithKind(explain.KindDeployment))},
		},
		Spec: v1alpha1.MachineSetSpec{Replicas: 1, Selector: selector, Template: template},
	}, func(set *v1alpha1.MachineSet) {
		set.Status = v1alpha1.MachineSetStatus{ObservedGeneration: 1, Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	})
	s.machine("pool-a-1", "pool-a-1", set, func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachineRunning, LastUpdateTime: metav1.Now()}
	})
	return deployment
}

// mayList permits the impersonated user to read some resources.
func (s *server) mayList(t *testing.T, resources ...string) {
	t.Helper()
	name := strings.Join(resources, "-")
	objects := []client.Object{
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.GroupName}, Resources: resources, Verbs: []string{"get", "list"}}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "viewer"}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		},
	}
	admin := connect(t, s.Admin, env.NewScheme())
	for _, object := range objects {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeployment_ReportsUnreadableObjects checks that objects that cannot be listed are not reported as missing.
func TestDeployment_ReportsUnreadableObjects(t *testing.T) {
	tier.All(t)
	s := newServer(t)
	s.deployment()
	viewer := explainer{Reader{Control: connect(t, impersonated(s.Admin), env.NewScheme())}}
	key := types.NamespacedName{Namespace: s.Namespace, Name: "pool"}
	wantUnread := func(missing string) {
		t.Helper()
		got, err := viewer.Deployment(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if got.Verdict != report.Unknown || got.Pool.Exist != 1 || got.Pool.Available != 1 || len(got.Why) > 0 || !strings.Contains(got.Summary, missing+" cannot be read") {
			t.Errorf("got %s (%s), %+v", got.Summary, got.Verdict, got.Pool)
		}
	}
	s.mayList(t, "machinedeployments")
	s.waitForPermission(t, viewer.Control, &v1alpha1.MachineDeploymentList{})
	wantUnread("its machine sets")
	s.mayList(t, "machinesets")
	s.waitForPermission(t, viewer.Control, &v1alpha1.MachineSetList{})
	wantUnread("its machines")
	s.mayList(t, "machines")
	s.waitForPermission(t, viewer.Control, &v1alpha1.MachineList{})
	if got, err := viewer.Deployment(t.Context(), key); err != nil || got.Verdict != report.Healthy {
		t.Errorf("with all permissions: %s (%s), %v", got.Summary, got.Verdict, err)
	}
}

// waitForPermission waits until the API server permits a request.
func (s *server) waitForPermission(t *testing.T, c client.Reader, list client.ObjectList) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, env.WaitTimeout, true, func(ctx context.Context) (bool, error) {
		return c.List(ctx, list, client.InNamespace(s.Namespace)) == nil, nil
	})
	if err != nil {
		t.Fatalf("no permission: %v", err)
	}
}

// TestDeployment_IgnoresEventsOfPredecessor checks that events on an earlier deployment with the same name are
// ignored.
func TestDeployment_IgnoresEventsOfPredecessor(t *testing.T) {
	tier.All(t)
	s := newServer(t)
	now := s.deployment()
	for name, uid := range map[string]types.UID{"earlier": "earlier", "now": now.UID} {
		put(s, s.control, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: s.Namespace, Name: name},
			InvolvedObject: corev1.ObjectReference{Kind: explain.KindDeployment, Namespace: s.Namespace, Name: now.Name, UID: uid},
			Type:           corev1.EventTypeNormal, Reason: name, LastTimestamp: metav1.Now(),
		}, nil)
	}
	got, err := explainer{Reader{Control: s.control}}.Deployment(t.Context(), client.ObjectKeyFromObject(now))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Events) != 1 || got.Events[0].Reason != "now" {
		t.Errorf("events: %+v", got.Events)
	}
}
