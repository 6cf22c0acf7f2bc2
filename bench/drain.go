package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
)

// drain deletes all Machines. Their nodes have pods with disruption budgets, some of which have volumes. Programs that
// a control plane alone does not have are simulated, see cluster.
func (w *setup) drain() phase {
	var c *cluster
	return phase{
		prepare: func(ctx context.Context) error {
			c = newCluster(w, slices.Sorted(maps.Values(w.tracker.nodes())))
			return c.create(ctx)
		},
		do: func(ctx context.Context) error {
			ctx, stop, err := c.start(ctx)
			if err != nil {
				return err
			}
			err = w.scale(ctx, none)
			return cmp.Or(stop(), err)
		},
		pods:   func() int { return len(c.workloads) },
		check:  evictedOnly,
		bounds: func(p pool) bounds { return bounds{most: p.machines, leaving: p.machines} },
	}
}

// evictedOnly returns an error if the manager deleted pods, since it must evict them.
func evictedOnly(requests env.Totals) error {
	deleted := 0
	for request, count := range requests {
		if request.Method == "DELETE" && request.Resource == "pods" && request.Code < 300 {
			deleted += count
		}
	}
	if deleted > 0 {
		return fmt.Errorf("the manager deleted %d pods instead of evicting them", deleted)
	}
	return nil
}

// excludeBudgets no longer counts requests for disruption budgets. The API server makes them itself when it processes
// an eviction, and its metrics do not distinguish them from those of its clients. They are still replayed.
func (p *phaseResult) excludeBudgets() {
	for request, count := range p.requests {
		if name, _, _ := strings.Cut(request.Resource, "/"); name == "poddisruptionbudgets" {
			p.own[request] += count
			delete(p.requests, request)
		}
	}
}

// workload is a pod on a node that is drained.
type workload struct {
	name, node, app string
	// volume is the name of its claim and volume. It is empty if it has none.
	volume string
}

const (
	// workloadLabel is the label of the pods on nodes that are drained. Its value is the app.
	workloadLabel = "bench.millwright.dev/app"
	// nodesPerApp is the number of nodes across which the pods of an app are spread. With many more, evictions at the same
	// time mostly measure how the API server retries conflicting writes of a budget.
	nodesPerApp = 10
	// csiDriver is the name of the driver of all volumes.
	csiDriver = "csi.bench.millwright.dev"
	// elsewhere is the node to which volumes move.
	elsewhere = "elsewhere"
)

// workloads returns the pods of all nodes. The pods of an app are on different nodes.
func (l load) workloads(nodes []string) []workload {
	var all []workload
	for i, node := range nodes {
		for j := range l.podsPerMachine {
			p := workload{name: fmt.Sprintf("%s-%d", node, j), node: node, app: fmt.Sprintf("app-%d-%d", i/nodesPerApp, j)}
			if j < l.volumesPerMachine {
				p.volume = p.name
			}
			all = append(all, p)
		}
	}
	return all
}

func (p workload) pod() *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: p.name, Labels: map[string]string{workloadLabel: p.app},
			// A drain waits until the volumes of a pod with a controller are attached to another node.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: p.app, UID: types.UID(p.app), Controller: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{NodeName: p.node, Containers: []corev1.Container{container("main", p.app)}},
	}
	pod.Spec.Containers[0].VolumeMounts = nil
	if p.volume != "" {
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.volume},
		}}}
	}
	return pod
}

// volumeOf returns a volume and its claim, which are bound to each other.
func volumeOf(name string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	storage := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: storage, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: name},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: name}},
			},
		}, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: modes, VolumeName: name, StorageClassName: ptr.To(""), Resources: corev1.VolumeResourceRequirements{Requests: storage},
			},
		}
}

// attached is the name of a volume in the status of its node.
func attached(volume string) corev1.AttachedVolume {
	return corev1.AttachedVolume{Name: corev1.UniqueVolumeName("kubernetes.io/csi/" + csiDriver + "^" + volume)}
}

func attachment(volume, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: volume + "." + node},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: csiDriver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}
}

// budgetFor returns the disruption budget of an app, which allows half of its pods to be unavailable.
func budgetFor(app string, pods int) *policyv1.PodDisruptionBudget {
	allowed := intstr.FromInt(max(1, pods/2))
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &allowed, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{workloadLabel: app}},
		},
		Status: policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: 1, DisruptionsAllowed: allowed.IntVal, ExpectedPods: int32(pods), CurrentHealthy: int32(pods), DesiredHealthy: int32(pods) - allowed.IntVal,
		},
	}
}

// create creates all pods, volumes and budgets.
func (c *cluster) create(ctx context.Context) error {
	began := time.Now()
	if err := inParallel(ctx, len(c.budgets), func(ctx context.Context, i int) error {
		return c.createWithStatus(ctx, c.budgets[i].object.DeepCopy())
	}); err != nil {
		return fmt.Errorf("cannot create disruption budgets: %w", err)
	}
	if err := inParallel(ctx, len(c.workloads), func(ctx context.Context, i int) error { return c.createWorkload(ctx, c.workloads[i]) }); err != nil {
		return fmt.Errorf("cannot create pods: %w", err)
	}
	nodes := slices.Sorted(maps.Keys(c.nodes))
	if err := inParallel(ctx, len(nodes), func(ctx context.Context, i int) error { return c.nodes[nodes[i]].write(ctx, c.client) }); err != nil {
		return fmt.Errorf("cannot attach volumes: %w", err)
	}
	c.log("created %d pods and %d disruption budgets in %.1f s", len(c.workloads), len(c.budgets), time.Since(began).Seconds())
	return nil
}

func (c *cluster) createWorkload(ctx context.Context, p workload) error {
	if p.volume != "" {
		volume, claim := volumeOf(p.volume)
		if err := errors.Join(c.client.Create(ctx, volume), c.client.Create(ctx, claim), c.attach(ctx, p.volume, p.node)); err != nil {
			return err
		}
	}
	pod := p.pod()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return c.createWithStatus(ctx, pod)
}

// attach creates the attachment of a volume to a node, as if the attach-detach controller and the CSI driver were
// finished.
func (c *cluster) attach(ctx context.Context, volume, node string) error {
	object := attachment(volume, node)
	object.Status.Attached = true
	return c.createWithStatus(ctx, object)
}

// createWithStatus creates an object with its status, in two requests.
func (c *cluster) createWithStatus(ctx context.Context, object client.Object) error {
	desired := object.DeepCopyObject().(client.Object)
	if err := c.client.Create(ctx, object); err != nil {
		return err
	}
	desired.SetUID(object.GetUID())
	desired.SetResourceVersion(object.GetResourceVersion())
	return c.client.Status().Update(ctx, desired)
}
