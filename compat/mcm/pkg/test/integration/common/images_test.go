package common

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func withContainers(names ...string) *appsv1.Deployment {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "mcm"}}
	for _, name := range names {
		deployment.Spec.Template.Spec.Containers = append(deployment.Spec.Template.Spec.Containers, corev1.Container{Name: name, Image: "old"})
	}
	return deployment
}

// TestImages_AreSetInContainers: each image is set only in its containers, and an image without a container is an error.
func TestImages_AreSetInContainers(t *testing.T) {
	const provider = "machine-controller-manager-provider-aws"
	for name, tc := range map[string]struct {
		images     images
		containers []string
		want       string // images in the order of the containers; empty if an error is expected
	}{
		"both images":           {images{"mcm", "new-mcm", "new-mc"}, []string{provider, managerContainer}, "new-mc new-mcm"},
		"manager image":         {images{"mcm", "new-mcm", ""}, []string{managerContainer, provider}, "new-mcm old"},
		"machines image":        {images{"mcm", "", "new-mc"}, []string{managerContainer, provider}, "old new-mc"},
		"no manager container":  {images{"mcm", "new-mcm", "new-mc"}, []string{provider}, ""},
		"no provider container": {images{"mcm", "", "new-mc"}, []string{managerContainer}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := withContainers(tc.containers...)
			err := tc.images.set(deployment)
			if tc.want == "" {
				if err == nil || !strings.Contains(err.Error(), "is for the image new-") {
					t.Errorf("got error %v", err)
				}
				return
			}
			var got []string
			for _, container := range deployment.Spec.Template.Spec.Containers {
				got = append(got, container.Image)
			}
			if err != nil || strings.Join(got, " ") != tc.want {
				t.Errorf("got images %q, %v; want %s", got, err, tc.want)
			}
		})
	}
}

// TestRolledOut_IgnoresOlderGenerations: Pods of an older template and a status of an older generation are not accepted.
func TestRolledOut_IgnoresOlderGenerations(t *testing.T) {
	done := appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
	for name, tc := range map[string]struct {
		change func(*appsv1.DeploymentStatus)
		want   bool
	}{
		"done":          {func(*appsv1.DeploymentStatus) {}, true},
		"not observed":  {func(s *appsv1.DeploymentStatus) { s.ObservedGeneration = 1 }, false},
		"an old Pod":    {func(s *appsv1.DeploymentStatus) { s.Replicas = 2 }, false},
		"none updated":  {func(s *appsv1.DeploymentStatus) { s.UpdatedReplicas = 0 }, false},
		"not available": {func(s *appsv1.DeploymentStatus) { s.AvailableReplicas = 0 }, false},
	} {
		deployment := withContainers(managerContainer)
		deployment.Generation, deployment.Status = 2, done
		tc.change(&deployment.Status)
		if got := rolledOut(deployment); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
