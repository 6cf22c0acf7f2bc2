package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

const (
	// podsPerNode is a kubelet's limit.
	podsPerNode = 110
	// podsPerApp is how many pods differ in their names only.
	podsPerApp = 10
)

// otherNodes returns the number of nodes without a Machine. They have all the pods.
func (l load) otherNodes() int { return (l.pods + podsPerNode - 1) / podsPerNode }

// populate creates nodes without a Machine, and their pods, before anything is measured.
func (w *setup) populate(ctx context.Context) error {
	if w.load.pods == 0 {
		return nil
	}
	began := time.Now()
	err := inParallel(ctx, w.load.otherNodes(), func(ctx context.Context, i int) error {
		return w.client.Create(ctx, node(i))
	})
	if err != nil {
		return fmt.Errorf("creating nodes: %w", err)
	}
	if err := inParallel(ctx, w.load.pods, func(ctx context.Context, i int) error { return w.client.Create(ctx, pod(i)) }); err != nil {
		return fmt.Errorf("creating pods: %w", err)
	}
	w.log("%d pods on %d nodes were created in %.1f s", w.load.pods, w.load.otherNodes(), time.Since(began).Seconds())
	return nil
}

func otherNode(i int) string { return fmt.Sprintf("other-%d", i) }

// node has the annotation that managers give to nodes without a Machine after a while. Otherwise a
// long measurement would count that.
func node(i int) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: otherNode(i), Annotations: map[string]string{v1alpha1.AnnotationKeyNotManaged: "1"},
	}}
}

// pod is like that of an ordinary application, with a sidecar, settings and mounts: about 3 KiB of
// JSON before the API server adds its own fields.
func pod(i int) *corev1.Pod {
	app := fmt.Sprintf("app-%d", i/podsPerApp)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s-6d5f9c7b8-%d", app, i),
			Labels: map[string]string{
				"app.kubernetes.io/name": app, "app.kubernetes.io/instance": "production", "pod-template-hash": "6d5f9c7b8",
			},
			Annotations: map[string]string{
				"checksum/config":      "0f343b0931126a20f133d67c2b018a3b5e7c1c4ad8d5d5a3b6c7d8e9f0a1b2c3",
				"prometheus.io/scrape": "true", "prometheus.io/port": "9090",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-6d5f9c7b8",
				UID: types.UID(fmt.Sprintf("5b0e6f6a-7d5c-4a53-9f3b-%012d", i/podsPerApp)), Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName:   otherNode(i / podsPerNode),
			Containers: []corev1.Container{container("main", app), container("sidecar", app)},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: app}}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-" + app}}},
			},
			Tolerations: []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "applications", Effect: corev1.TaintEffectNoSchedule}},
		},
	}
}

func container(name, app string) corev1.Container {
	return corev1.Container{
		Name: name, Image: "registry.example/" + app + "/" + name + ":v1.27.3", Args: []string{"--config=/etc/app/config.yaml", "--log-level=info"},
		Env: environment(),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: "/etc/app", ReadOnly: true}, {Name: "scratch", MountPath: "/tmp"}, {Name: "data", MountPath: "/var/lib/app"},
		},
	}
}

// environment of a container: the largest part of a pod, which a manager need not cache.
func environment() []corev1.EnvVar {
	vars := make([]corev1.EnvVar, 10)
	for i := range vars {
		vars[i] = corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: "the value of a setting of an application"}
	}
	return vars
}
