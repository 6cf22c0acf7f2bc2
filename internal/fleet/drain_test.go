package fleet

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestFleet_DrainWaitsForLists checks that a Machine whose node has a Pod keeps its VM while the Pods of the target cannot be
// listed, that its status shows why, and that the Pod is evicted after they were listed.
func TestFleet_DrainWaitsForLists(t *testing.T) {
	tier.All(t)
	t.Parallel()
	g := gomega.NewWithT(t)
	w := newWorld(t)
	target := w.target(1)
	name := w.namespace("one", target, 1)
	cfg := w.config()
	var blocked atomic.Bool
	var lists atomic.Int32
	cfg.Configure = func(namespace string, _ map[string]string) (Settings, error) {
		settings := w.settings(namespace)
		open := settings.Open
		settings.Open = func(ctx context.Context, config *manager.Config) (func(), error) {
			config.Target.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(request *http.Request) (*http.Response, error) {
					if request.Method == http.MethodGet && request.URL.Path == "/api/v1/pods" {
						lists.Add(1)
						if blocked.Load() {
							return nil, errors.New("the test blocks the list")
						}
					}
					return next.RoundTrip(request)
				})
			})
			return open(ctx, config)
		}
		return settings, nil
	}
	w.start(cfg)
	w.awaitAvailable(name, 1)
	if lists.Load() != 0 {
		t.Error("the Pods of the target were listed before a drain")
	}
	machines := &v1alpha1.MachineList{}
	if err := w.seed.Client.List(t.Context(), machines, client.InNamespace(name)); err != nil {
		t.Fatal(err)
	}
	machine := &machines.Items[0]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: target.Namespace, Name: "pod"}}
	pod.Spec.NodeName = machine.Labels[v1alpha1.NodeLabelKey]
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(0)) // no kubelet terminates it
	pod.Spec.Containers = []corev1.Container{{Name: "container", Image: "image"}}
	if err := target.Client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}

	blocked.Store(true)
	w.scale(name, 0)
	g.Eventually(func() (string, error) {
		err := w.seed.Client.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)
		return machine.Status.LastOperation.Description, err
	}).WithTimeout(waitTimeout).Should(gomega.And(gomega.ContainSubstring("listing the pods and volumes of the target cluster"), gomega.ContainSubstring("the test blocks the list")))
	if err := target.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || !pod.DeletionTimestamp.IsZero() {
		t.Errorf("the Pod was evicted before the Pods were listed: %v", err)
	}
	if vms, err := w.cloudOf(name).VMs(); err != nil || len(vms) != 1 {
		t.Errorf("%d VMs, %v; want 1", len(vms), err)
	}
	blocked.Store(false)
	w.awaitAvailable(name, 0)
	g.Eventually(func() string { return w.machines(name) }).WithTimeout(waitTimeout).Should(gomega.BeEmpty())
	if err := target.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); !apierrors.IsNotFound(err) {
		t.Errorf("the Pod was not evicted: %v", err)
	}
}
