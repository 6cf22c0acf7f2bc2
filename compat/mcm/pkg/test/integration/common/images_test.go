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

// TestImages: each image is set in its container only, and one without a container is refused.
func TestImages(t *testing.T) {
	const provider = "machine-controller-manager-provider-aws"
	for name, tc := range map[string]struct {
		images     images
		containers []string
		want       string // images in the order of the containers; empty: refused
	}{
		"both":                {images{"mcm", "new-mcm", "new-mc"}, []string{provider, managerContainer}, "new-mc new-mcm"},
		"that of the manager": {images{"mcm", "new-mcm", ""}, []string{managerContainer, provider}, "new-mcm old"},
		"that of machines":    {images{"mcm", "", "new-mc"}, []string{managerContainer, provider}, "old new-mc"},
		"no manager":          {images{"mcm", "new-mcm", "new-mc"}, []string{provider}, ""},
		"no provider":         {images{"mcm", "", "new-mc"}, []string{managerContainer}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := withContainers(tc.containers...)
			err := tc.images.set(deployment)
			if tc.want == "" {
				if err == nil || !strings.Contains(err.Error(), "has no container for the image new-") {
					t.Errorf("error is %v", err)
				}
				return
			}
			var got []string
			for _, container := range deployment.Spec.Template.Spec.Containers {
				got = append(got, container.Image)
			}
			if err != nil || strings.Join(got, " ") != tc.want {
				t.Errorf("images %q, %v; want %s", got, err, tc.want)
			}
		})
	}
}

// TestRolledOut: Pods of an older template do not count, and neither does a status of an older generation.
func TestRolledOut(t *testing.T) {
	done := appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}
	for name, tc := range map[string]struct {
		change func(*appsv1.DeploymentStatus)
		want   bool
	}{
		"done":          {func(*appsv1.DeploymentStatus) {}, true},
		"not yet seen":  {func(s *appsv1.DeploymentStatus) { s.ObservedGeneration = 1 }, false},
		"an old Pod":    {func(s *appsv1.DeploymentStatus) { s.Replicas = 2 }, false},
		"none is new":   {func(s *appsv1.DeploymentStatus) { s.UpdatedReplicas = 0 }, false},
		"not available": {func(s *appsv1.DeploymentStatus) { s.AvailableReplicas = 0 }, false},
	} {
		deployment := withContainers(managerContainer)
		deployment.Generation, deployment.Status = 2, done
		tc.change(&deployment.Status)
		if got := rolledOut(deployment); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
