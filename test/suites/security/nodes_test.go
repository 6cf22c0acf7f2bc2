package security

import (
	"context"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// victim is a node with a Pod that uses a Secret: a guest that joined, or a host with a hypervisor.
type victim struct {
	*env.Env
	node string
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	e := env.New(t)
	local(t, e)
	v := &victim{Env: e, node: "victim-of-" + e.Namespace}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "vm"},
		Spec: corev1.PodSpec{
			NodeName: v.node, Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "user-data", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "user-data"}}}},
		},
	}
	if err := e.Client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: v.node}}); err != nil {
		t.Fatal(err)
	}
	if err := e.Client.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "user-data"}}); err != nil {
		t.Fatal(err)
	}
	if err := e.Client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return v
}

// attempt is an operation that a node attempts. Each is rejected, because it concerns another node.
type attempt func(ctx context.Context, attacker kubernetes.Interface, own string, v *victim) error

var attempts = map[string]attempt{
	"reads the secret of the other's pod": func(ctx context.Context, a kubernetes.Interface, _ string, v *victim) error {
		_, err := a.CoreV1().Secrets(v.Namespace).Get(ctx, "user-data", metav1.GetOptions{})
		return err
	},
	"makes a token for the other's pod": func(ctx context.Context, a kubernetes.Interface, _ string, v *victim) error {
		pod, err := a.CoreV1().Pods(v.Namespace).Get(ctx, "vm", metav1.GetOptions{})
		uid := types.UID("")
		if err == nil {
			uid = pod.UID
		}
		_, err = a.CoreV1().ServiceAccounts(v.Namespace).CreateToken(ctx, "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{"vm.metropolis.monogon.dev"}, BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "vm", UID: uid},
		}}, metav1.CreateOptions{})
		return err
	},
	"deletes the other's pod": func(ctx context.Context, a kubernetes.Interface, _ string, v *victim) error {
		return a.CoreV1().Pods(v.Namespace).Delete(ctx, "vm", metav1.DeleteOptions{})
	},
	"evicts the other's pod": func(ctx context.Context, a kubernetes.Interface, _ string, v *victim) error {
		return a.CoreV1().Pods(v.Namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: "vm"}})
	},
	"writes the status of the other's pod": func(ctx context.Context, a kubernetes.Interface, _ string, v *victim) error {
		_, err := a.CoreV1().Pods(v.Namespace).Patch(ctx, "vm", types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status")
		return err
	},
	"makes a mirror pod on the other": func(ctx context.Context, a kubernetes.Interface, _ string, v *victim) error {
		_, err := a.CoreV1().Pods(v.Namespace).Create(ctx, mirror(ctx, a, v.Namespace, v.node), metav1.CreateOptions{})
		return err
	},
	"makes a mirror pod that mounts the secret": func(ctx context.Context, a kubernetes.Interface, own string, v *victim) error {
		pod := mirror(ctx, a, v.Namespace, own)
		pod.Spec.Volumes = []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "user-data"}}}}
		_, err := a.CoreV1().Pods(v.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	},
	"makes a mirror pod with a service account": func(ctx context.Context, a kubernetes.Interface, own string, v *victim) error {
		pod := mirror(ctx, a, v.Namespace, own)
		pod.Spec.ServiceAccountName = "default"
		_, err := a.CoreV1().Pods(v.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	},
	"makes an ordinary pod": func(ctx context.Context, a kubernetes.Interface, own string, v *victim) error {
		pod := mirror(ctx, a, v.Namespace, own)
		pod.Annotations = nil
		_, err := a.CoreV1().Pods(v.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	},
	"changes the other node": func(ctx context.Context, a kubernetes.Interface, _ string, v *victim) error {
		_, err := a.CoreV1().Nodes().Patch(ctx, v.node, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
		return err
	},
	"writes the other node's conditions": func(ctx context.Context, a kubernetes.Interface, _ string, v *victim) error {
		_, err := a.CoreV1().Nodes().Patch(ctx, v.node, types.MergePatchType, []byte(`{"status":{"phase":"Terminated"}}`), metav1.PatchOptions{}, "status")
		return err
	},
	"deletes the other node": func(ctx context.Context, a kubernetes.Interface, _ string, v *victim) error {
		return a.CoreV1().Nodes().Delete(ctx, v.node, metav1.DeleteOptions{})
	},
	"registers another node": func(ctx context.Context, a kubernetes.Interface, own string, _ *victim) error {
		_, err := a.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "second-" + own}}, metav1.CreateOptions{})
		return err
	},
	"takes its own taints away": func(ctx context.Context, a kubernetes.Interface, own string, _ *victim) error {
		_, err := a.CoreV1().Nodes().Patch(ctx, own, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
		return err
	},
	"takes another VM's provider ID": func(ctx context.Context, a kubernetes.Interface, own string, _ *victim) error {
		_, err := a.CoreV1().Nodes().Patch(ctx, own, types.MergePatchType, []byte(`{"spec":{"providerID":"millwright:///vms/other"}}`), metav1.PatchOptions{})
		return err
	},
	"deletes its own node": func(ctx context.Context, a kubernetes.Interface, own string, _ *victim) error {
		return a.CoreV1().Nodes().Delete(ctx, own, metav1.DeleteOptions{})
	},
	"keeps the other alive": func(ctx context.Context, a kubernetes.Interface, _ string, v *victim) error {
		_, err := a.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, v.node, metav1.GetOptions{})
		return err
	},
	"lists all secrets": func(ctx context.Context, a kubernetes.Interface, _ string, _ *victim) error {
		_, err := a.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
		return err
	},
}

// mirror returns a mirror Pod as a kubelet creates it. Nodes may read each other.
func mirror(ctx context.Context, a kubernetes.Interface, namespace, node string) *corev1.Pod {
	var uid types.UID
	if found, err := a.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err == nil {
		uid = found.UID
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "mirror", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid, Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

// TestNode_CannotAffectOtherNodes checks that a compromised guest or host can affect neither another node, nor its Pods, nor
// what these use, and that it cannot remove its taints.
func TestNode_CannotAffectOtherNodes(t *testing.T) {
	tier.All(t)
	for name, groups := range map[string][]string{
		"guest": {"system:nodes"},
		"host":  {"system:nodes", "millwright:hosts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVictim(t)
			own := name + "-of-" + v.Namespace
			config, err := v.ControlPlane.UserConfig("system:node:"+own, groups...)
			if err != nil {
				t.Fatal(err)
			}
			attacker, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			// It is permitted to register itself.
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: own}}
			node.Spec.ProviderID = "millwright:///vms/own"
			node.Spec.Taints = []corev1.Taint{{Key: "example.com/untrusted", Effect: corev1.TaintEffectNoSchedule}}
			if _, err := attacker.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			// A mirror Pod on itself is permitted, so the rejections below are not for mirror Pods in general.
			ctx := t.Context()
			if _, err := attacker.CoreV1().Pods(v.Namespace).Create(ctx, mirror(ctx, attacker, v.Namespace, own), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				t.Errorf("a mirror pod on the %s itself: %v", name, err)
			}
			for what, try := range attempts {
				err := try(ctx, attacker, own, v)
				if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
					t.Errorf("a %s that %s gets %v, want a refusal", name, what, err)
				}
			}
		})
	}
}
