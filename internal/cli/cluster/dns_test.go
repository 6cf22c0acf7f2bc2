package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/guest/userdata"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/manager"
)

func node(name string, spec corev1.NodeSpec) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

func tainted(key string, effect corev1.TaintEffect) corev1.NodeSpec {
	return corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Effect: effect}}}
}

// TestDNS_Replicas checks that there are two replicas if two nodes are schedulable. Otherwise there is one, and
// the disruption budget permits its eviction.
func TestDNS_Replicas(t *testing.T) {
	free := corev1.NodeSpec{}
	for name, tc := range map[string]struct {
		nodes []corev1.NodeSpec
		want  int32
	}{
		"no node":               {nil, 1},
		"one":                   {[]corev1.NodeSpec{free}, 1},
		"two":                   {[]corev1.NodeSpec{free, free}, 2},
		"three":                 {[]corev1.NodeSpec{free, free, free}, 2},
		"one, and hosts":        {[]corev1.NodeSpec{free, tainted(vmv1alpha1.HostKey, corev1.TaintEffectNoSchedule)}, 1},
		"one is cordoned":       {[]corev1.NodeSpec{free, {Unschedulable: true}}, 1},
		"one is not ready":      {[]corev1.NodeSpec{free, tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)}, 2},
		"one is for other Pods": {[]corev1.NodeSpec{free, tainted("example.org/own", corev1.TaintEffectNoExecute)}, 1},
		"one would rather not":  {[]corev1.NodeSpec{free, tainted("example.org/own", corev1.TaintEffectPreferNoSchedule)}, 2},
		"all leave at one time": {[]corev1.NodeSpec{{Unschedulable: true}, {Unschedulable: true}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes []corev1.Node
			for _, spec := range tc.nodes {
				nodes = append(nodes, node("", spec))
			}
			if got := dnsReplicasFor(nodes); got != tc.want {
				t.Errorf("%d replicas, want %d", got, tc.want)
			}
		})
	}
}

// TestDNS_IsScaledOnce checks that nothing is written without a change, or after a user has removed the DNS.
func TestDNS_IsScaledOnce(t *testing.T) {
	one, two := node("one", corev1.NodeSpec{}), node("two", corev1.NodeSpec{})
	writes := 0
	cluster := fake.NewClientBuilder().WithScheme(manager.Scheme()).WithObjects(&one, &two).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			writes++
			return c.Patch(ctx, object, patch, options...)
		},
	}).Build()
	if err := scaleDNS(t.Context(), cluster, cluster); err != nil || writes > 0 {
		t.Errorf("without a DNS: %d writes, %v", writes, err)
	}
	dns := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: dnsKey.Namespace, Name: dnsKey.Name}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}}
	if err := cluster.Create(t.Context(), dns); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := scaleDNS(t.Context(), cluster, cluster); err != nil {
			t.Fatal(err)
		}
	}
	if err := cluster.Get(t.Context(), dnsKey, dns); err != nil || *dns.Spec.Replicas != 2 || writes != 1 {
		t.Errorf("%d replicas after %d writes, want 2 after 1: %v", *dns.Spec.Replicas, writes, err)
	}
}

// TestDNS_Manifest checks that the address of the Service is the one that guests pass to their Pods, and that only
// scaleDNS sets the replicas. Otherwise "up" would reset them on each start.
func TestDNS_Manifest(t *testing.T) {
	objects := manifest(t, "full/dns.yaml")
	address, _, _ := unstructured.NestedString(objects["Service"].Object, "spec", "clusterIP")
	if parsed, err := netip.ParseAddr(address); err != nil || address != userdata.DefaultClusterDNS || !controlplane.ServiceNetwork.Contains(parsed) {
		t.Errorf("the Service has the address %q, and guests name %s, of %s", address, userdata.DefaultClusterDNS, controlplane.ServiceNetwork)
	}
	deployment := objects["Deployment"]
	if replicas, there, _ := unstructured.NestedInt64(deployment.Object, "spec", "replicas"); there {
		t.Errorf("the manifest reports %d replicas", replicas)
	}
	if key := client.ObjectKeyFromObject(deployment); key != dnsKey {
		t.Errorf("the Deployment is %s, want %s", key, dnsKey)
	}
}

// manifest returns the objects of a file by kind.
func manifest(t *testing.T, path string) map[string]*unstructured.Unstructured {
	t.Helper()
	text, err := config.Files.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	objects, documents := map[string]*unstructured.Unstructured{}, utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		object := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.Unmarshal(document, &object.Object)
		}
		if err != nil {
			t.Fatal(err)
		}
		objects[object.GetKind()] = object
	}
}
