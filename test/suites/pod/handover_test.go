package pod

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// handOverLimit is how long a lease may be free, according to the times that the two managers write. It is less
// than the time for which a lease that is not released stays valid. A standby checks at least every 1.1 s; the
// remaining time is for load.
const handOverLimit = leaseDuration / 4

// handOver deletes the Pod that holds a lease, as a rollout or a drain does. It checks that the Pod shuts down
// gracefully and releases its lease, and that the other Pod takes the lease without waiting for its expiry.
func (p *place) handOver(lease string) {
	p.Helper()
	p.hasStandBy()
	if free := p.replaceHolder(lease); free >= handOverLimit {
		p.Errorf("the lease %s was free for %v", lease, free)
	}
}

// hasStandBy waits until both Pods are ready, and neither is being deleted.
func (p *place) hasStandBy() {
	p.Helper()
	p.awaitReady(installed, 2)
	p.eventually(func(g gomega.Gomega) {
		pods := &corev1.PodList{}
		g.Expect(p.env.Client.List(p.Context(), pods, client.InNamespace(p.env.Namespace), client.MatchingLabels(p.template().Labels))).To(gomega.Succeed())
		g.Expect(pods.Items).To(gomega.HaveLen(2))
		for i := range pods.Items {
			g.Expect(pods.Items[i].DeletionTimestamp).To(gomega.BeNil())
			g.Expect(pods.Items[i].Status.Conditions).To(gomega.ContainElement(gomega.And(
				gomega.HaveField("Type", corev1.PodReady), gomega.HaveField("Status", corev1.ConditionTrue))))
		}
	})
}

// replaceHolder deletes the Pod that holds a lease, and returns how long the lease is free.
func (p *place) replaceHolder(name string) (free time.Duration) {
	p.Helper()
	lease := &coordinationv1.Lease{}
	if err := p.env.Client.Get(p.Context(), client.ObjectKey{Namespace: p.env.Namespace, Name: name}, lease); err != nil {
		p.Fatal(err)
	}
	leader := &corev1.Pod{}
	if err := p.env.Client.Get(p.Context(), client.ObjectKey{Namespace: p.env.Namespace, Name: holder(lease)}, leader); err != nil {
		p.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.Context(), waitTimeout)
	defer cancel()
	leases, err := p.clients.CoordinationV1().Leases(p.env.Namespace).Watch(ctx, metav1.SingleObject(lease.ObjectMeta))
	if err != nil {
		p.Fatal(err)
	}
	pods, err := p.clients.CoreV1().Pods(p.env.Namespace).Watch(ctx, metav1.SingleObject(leader.ObjectMeta))
	if err != nil {
		p.Fatal(err)
	}
	p.logsOnFailure(leader)
	began := time.Now()
	if err := p.env.Client.Delete(p.Context(), leader); err != nil {
		p.Fatal(err)
	}
	free = p.changesHands(leases.ResultChan(), leader.Name, began)
	p.endsInOrder(pods.ResultChan())
	return free
}

// holder returns the Pod that holds a lease.
func holder(lease *coordinationv1.Lease) string {
	pod, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return pod
}

// changesHands waits until a lease has moved from the leader to another Pod, and returns how long it was free.
// The leader was deleted at the given time.
func (p *place) changesHands(leases <-chan watch.Event, leader string, deleted time.Time) time.Duration {
	p.Helper()
	var released time.Time
	for event := range leases {
		lease := event.Object.(*coordinationv1.Lease)
		switch of := holder(lease); {
		case of == "":
			released = lease.Spec.RenewTime.Time
		case of != leader && released.IsZero():
			p.Fatalf("%s took the lease %s, which was not given back", of, lease.Name)
		case of != leader:
			taken := lease.Spec.AcquireTime.Time
			p.Logf("the lease %s was free %v after the deletion of its Pod, and taken %v later", lease.Name, released.Sub(deleted), taken.Sub(released))
			return taken.Sub(released)
		}
	}
	p.Fatalf("the lease of %s was not taken", leader)
	return 0
}

// endsInOrder checks the exit status of the containers of a Pod that is being deleted.
func (p *place) endsInOrder(pods <-chan watch.Event) {
	p.Helper()
	var last *corev1.Pod
	for event := range pods {
		last = event.Object.(*corev1.Pod)
		if event.Type == watch.Deleted {
			break
		}
	}
	for _, container := range last.Status.ContainerStatuses {
		if ended := container.State.Terminated; ended == nil || ended.ExitCode != 0 {
			p.Errorf("%s of the leader ended with %+v", container.Name, container.State)
		}
	}
}

// logsOnFailure reads the logs of a Pod's containers until they terminate, and logs them if the test fails. The logs
// of a deleted Pod cannot be read later.
func (p *place) logsOnFailure(pod *corev1.Pod) {
	p.Helper()
	for _, container := range pod.Spec.Containers {
		options := &corev1.PodLogOptions{Container: container.Name, Follow: true, TailLines: ptr.To[int64](50)}
		text := make(chan string, 1)
		go func() {
			out, err := p.clients.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).DoRaw(p.Context())
			text <- fmt.Sprintf("%s (%v)", out, err)
		}()
		p.Cleanup(func() {
			if p.Failed() {
				p.Logf("log of %s in the deleted pod %s:\n%s", container.Name, pod.Name, <-text)
			}
		})
	}
}
