package load

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func node(address string, change ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: address, UID: types.UID(address)},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: address}},
		},
	}
	for _, c := range change {
		c(&n)
	}
	return n
}

// TestBalancer_SelectsReadyNodes checks that nodes are selected as load balancers select them.
func TestBalancer_SelectsReadyNodes(t *testing.T) {
	now := metav1.Now()
	nodes := []corev1.Node{
		node("10.77.0.16"),
		node("10.77.0.17", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		node("10.77.0.18", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
		node("10.77.0.19", func(n *corev1.Node) { n.DeletionTimestamp = &now }),
		node("10.77.0.20", func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""} }),
		node("fd77::16"),
		node("10.77.0.21"),
	}
	b := &Balancer{
		Nodes: func(context.Context) ([]corev1.Node, error) { return nodes, nil },
		Get:   func(context.Context, netip.AddrPort, string) error { return nil }, Port: 30080,
	}
	if before := b.Targets(t.Context()); len(before) > 0 {
		t.Errorf("not asked yet, %v are used", before)
	}
	b.probe(t.Context())
	want := []string{"10.77.0.16:30080", "10.77.0.21:30080"}
	if diff := cmp.Diff(want, texts(b.Targets(t.Context()))); diff != "" {
		t.Error(diff)
	}
}

func texts(targets []netip.AddrPort) (all []string) {
	for _, target := range targets {
		all = append(all, target.String())
	}
	return all
}

// TestBalancer_ProbesServiceThroughNode checks that a Ready node is used only after the Service responds through it, not when its
// kube-proxy reports that it is healthy. A later node with the same address is probed again.
func TestBalancer_ProbesServiceThroughNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, leads := map[string]int{}, false
		nodes := []corev1.Node{node("10.77.0.16")}
		b := &Balancer{
			Nodes: func(context.Context) ([]corev1.Node, error) { return nodes, nil },
			Get: func(_ context.Context, target netip.AddrPort, path string) error {
				asked[target.String()+path]++
				if path != "/healthz" && !leads {
					return errRefused
				}
				return nil
			},
			Port: 30080,
		}
		ctx, cancel := context.WithCancel(t.Context())
		go b.Run(ctx, time.Second)
		uses := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := b.Targets(ctx); len(got) != want {
				t.Errorf("%v are used, want %d", got, want)
			}
		}
		uses(0)
		time.Sleep(2500 * time.Millisecond)
		uses(0)
		leads = true
		time.Sleep(time.Second)
		uses(1)
		time.Sleep(time.Minute)
		leads = false
		if want := (map[string]int{"10.77.0.16:30080/": 4}); !cmp.Equal(want, asked) {
			t.Errorf("asked %v, want %v", asked, want)
		}
		nodes = []corev1.Node{node("10.77.0.16", func(n *corev1.Node) { n.UID = "another" })}
		time.Sleep(time.Minute)
		uses(0)
		cancel()
	})
}
