package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// kept are the fields of a Pod that a drain or the cache itself reads. References to owners and claims are kept
// completely.
var kept = []string{
	"apiVersion", "kind",
	"metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion",
	"metadata.creationTimestamp", "metadata.deletionTimestamp", "metadata.deletionGracePeriodSeconds",
	"metadata.labels.key", // for the selectors of budgets
	"metadata.ownerReferences.apiVersion", "metadata.ownerReferences.kind", "metadata.ownerReferences.name", "metadata.ownerReferences.uid",
	"metadata.ownerReferences.controller", "metadata.ownerReferences.blockOwnerDeletion",
	"spec.nodeName", "spec.priority", "spec.terminationGracePeriodSeconds",
	"spec.volumes.name", "spec.volumes.persistentVolumeClaim.claimName", "spec.volumes.persistentVolumeClaim.readOnly",
	"status.phase",
}

// TestStrip_KeepsFieldsThatAreRead strips a Pod in which every possible field is set.
func TestStrip_KeepsFieldsThatAreRead(t *testing.T) {
	pod := &corev1.Pod{}
	fill(reflect.ValueOf(pod).Elem(), 0)
	whole := paths(t, pod)
	if len(whole) < 500 {
		t.Fatalf("the Pod has only %d fields: %q", len(whole), whole)
	}
	got := paths(t, strip(t, pod))
	want := slices.Sorted(slices.Values(kept))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept fields, -want +got:\n%s", diff)
	}
}

// TestStrip_DoesNotAllocate checks that stripping works in place. A cache strips each Pod when it arrives, and
// strips all of them again when it has the first list. A copy of all Pods would double its peak memory.
func TestStrip_DoesNotAllocate(t *testing.T) {
	pod := ordinary(1)
	if stripped := strip(t, pod); stripped != pod {
		t.Error("the stripped Pod is a copy")
	}
	before := pod.DeepCopy()
	if times := testing.AllocsPerRun(10, func() { strip(t, pod) }); times > 0 {
		t.Errorf("stripping again allocates %v times", times)
	}
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("stripped again, before - after +:\n%s", diff)
	}
}

// TestStrip_MirrorPod checks that a mirror Pod keeps the annotation that identifies it, and no others.
func TestStrip_MirrorPod(t *testing.T) {
	pod := ordinary(1)
	pod.Annotations[corev1.MirrorPodAnnotationKey] = "hash"
	want := map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	if diff := cmp.Diff(want, strip(t, pod).Annotations); diff != "" {
		t.Errorf("annotations, -want +got:\n%s", diff)
	}
}

// TestStrip_PodIsSmall checks that the size of a stripped Pod does not depend on the size of its application.
func TestStrip_PodIsSmall(t *testing.T) {
	const most = 600
	small, large := size(t, strip(t, ordinary(1))), size(t, strip(t, ordinary(100)))
	if whole := size(t, ordinary(1)); whole < 3000 || whole < 5*small {
		t.Errorf("a Pod of %d bytes is not an ordinary one: %d are kept", whole, small)
	}
	if small > most || large != small {
		t.Errorf("%d bytes are kept of a Pod with a container, %d of one with 100; want the same, and at most %d", small, large, most)
	}
}

// ordinary returns the Pod of an application with the given number of containers.
func ordinary(containers int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "production", Name: "shop-6d5f9c7b8-x2x4z", UID: "5b0e6f6a-7d5c-4a53-9f3b-1c2d3e4f5a6b", ResourceVersion: "1234567",
		Labels:          map[string]string{"app.kubernetes.io/name": "shop", "pod-template-hash": "6d5f9c7b8"},
		Annotations:     map[string]string{"checksum/config": strings.Repeat("0f", 32)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "shop-6d5f9c7b8", UID: "x", Controller: ptr.To(true)}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:status":` + strings.Repeat(" ", 1500) + `{}}`)}},
	}}
	pod.Spec.NodeName, pod.Status.Phase = "ip-10-250-0-17.eu-central-1.compute.internal", corev1.PodRunning
	for i := range containers {
		container := corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "registry.example/shop:v1.27.3"}
		for j := range 30 {
			container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", j), Value: strings.Repeat("v", 40)})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: container.Name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: container.Name, Image: container.Image})
	}
	claiming("data")(pod)
	return pod
}

func strip(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	stripped, err := StripPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	return stripped.(*corev1.Pod)
}

func size(t *testing.T, pod *corev1.Pod) int {
	t.Helper()
	content, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return len(content)
}

// fill sets all fields, down to the level at which a type contains itself.
func fill(value reflect.Value, depth int) {
	if fillKnown(value) || depth > 20 {
		return
	}
	switch value.Kind() {
	case reflect.Struct:
		for i := range value.NumField() {
			fill(value.Field(i), depth+1)
		}
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		fill(value.Elem(), depth+1)
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		fill(value.Index(0), depth+1)
	case reflect.Map:
		key, element := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
		key.SetString("key")
		fill(element, depth+1)
		value.Set(reflect.MakeMap(value.Type()))
		value.SetMapIndex(key, element)
	default:
		fillPlain(value)
	}
}

// fillKnown sets values that have their own format.
func fillKnown(value reflect.Value) bool {
	switch known := value.Addr().Interface().(type) {
	case *metav1.Time:
		*known = metav1.Unix(1, 0)
	case *metav1.MicroTime:
		*known = metav1.NewMicroTime(time.Unix(1, 0))
	case *resource.Quantity:
		*known = resource.MustParse("1")
	case *metav1.FieldsV1:
		known.SetRawString(`{"f:spec":{}}`)
	default:
		return false
	}
	return true
}

func fillPlain(value reflect.Value) {
	switch {
	case value.CanInt():
		value.SetInt(1)
	case value.CanUint():
		value.SetUint(1)
	case value.Kind() == reflect.String:
		value.SetString("text")
	case value.Kind() == reflect.Bool:
		value.SetBool(true)
	}
}

// paths returns the sorted paths of all fields that are set.
func paths(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	content, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	var fields any
	if err := json.Unmarshal(content, &fields); err != nil {
		t.Fatal(err)
	}
	var found []string
	walk(fields, "", func(path string) { found = append(found, path) })
	slices.Sort(found)
	return slices.Compact(found)
}

func walk(value any, path string, leaf func(string)) {
	switch value := value.(type) {
	case map[string]any:
		for key, field := range value {
			walk(field, strings.TrimPrefix(path+"."+key, "."), leaf)
		}
	case []any:
		for _, element := range value {
			walk(element, path, leaf)
		}
	case nil: // a list of which no element is kept
	default:
		leaf(path)
	}
}

// indexes records indexes.
type indexes map[string]client.IndexerFunc

func (i indexes) IndexField(_ context.Context, _ client.Object, field string, values client.IndexerFunc) error {
	if i == nil {
		return errUnavailable
	}
	i[field] = values
	return nil
}

// attachmentOf attaches a PersistentVolume; a volume without a name stands for an inline volume.
func attachmentOf(node, volume string) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{NodeName: node}}
	if volume != "" {
		a.Spec.Source.PersistentVolumeName = &volume
	}
	return a
}

func TestAddIndexes(t *testing.T) {
	added := indexes{}
	if err := AddIndexes(t.Context(), added); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		index  string
		object client.Object
		want   []string
	}{
		{PodByNode, onNode("a", nil), []string{"node"}},
		{PodByNode, &corev1.Pod{}, nil},
		{AttachmentByNode, attachmentOf("node", "v"), []string{"node"}},
		{AttachmentByVolume, attachmentOf("node", "v"), []string{"v"}},
		{AttachmentByVolume, attachmentOf("node", ""), nil},
	} {
		if got := added[tc.index](tc.object); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.index, got, tc.want)
		}
	}
	if err := AddIndexes(t.Context(), indexes(nil)); !errors.Is(err, errUnavailable) {
		t.Errorf("the error is %v", err)
	}
}

func TestStripPod_OtherObject(t *testing.T) {
	node := &corev1.Node{}
	if got, err := StripPod(node); got != node || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// draining maps each volume and each namespace to a machine of its name.
type draining struct{}

func (draining) Awaiting(volume string) []types.NamespacedName {
	return []types.NamespacedName{{Name: "awaits-" + volume}}
}

func (draining) Refused(namespace string) []types.NamespacedName {
	return []types.NamespacedName{{Name: "refused-" + namespace}}
}

func TestEvents_Machines(t *testing.T) {
	events := Events{Drainer: draining{}, Draining: func(_ context.Context, node string) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: "on-" + node}}}
	}}
	for name, tc := range map[string]struct {
		of     func(context.Context, client.Object) []reconcile.Request
		object client.Object
		want   []string
	}{
		"node":              {events.OfNode, emptyNode("node"), []string{"on-node"}},
		"pod":               {events.OfPod, onNode("a", nil), []string{"on-node"}},
		"attachment":        {events.OfAttachment, attachmentOf("node", "v"), []string{"on-node", "awaits-v"}},
		"inline attachment": {events.OfAttachment, attachmentOf("node", ""), []string{"on-node"}},
		"budget":            {events.OfBudget, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}, []string{"refused-ns"}},
	} {
		var got []string
		for _, request := range tc.of(t.Context(), tc.object) {
			got = append(got, request.Name)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
