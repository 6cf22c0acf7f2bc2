package core

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// TestMachine_DecodesBothVersions checks that the same Machine can be decoded from both versions.
func TestMachine_DecodesBothVersions(t *testing.T) {
	ours := schema.GroupKind{Group: "infrastructure.millwright.dev", Kind: "MillwrightMachine"}
	for version, text := range map[string]string{
		"v1beta1": `{"spec":{"clusterName":"c","bootstrap":{"configRef":{"kind":"X","name":"x"},"dataSecretName":"data"},"failureDomain":"b","version":"v1.36.0",
			"infrastructureRef":{"apiVersion":"infrastructure.millwright.dev/v1alpha1","kind":"MillwrightMachine","namespace":"ns","name":"m"}},
			"status":{"nodeRef":{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"},"infrastructureReady":true,"conditions":[{"type":"Ready","status":"False","severity":"Info"},{"type":"NodeHealthy","status":"True"}]}}`,
		"v1beta2": `{"spec":{"clusterName":"c","bootstrap":{"configRef":{"apiGroup":"g","kind":"X","name":"x"},"dataSecretName":"data"},"failureDomain":"b","version":"v1.36.0",
			"infrastructureRef":{"apiGroup":"infrastructure.millwright.dev","kind":"MillwrightMachine","name":"m"}},
			"status":{"nodeRef":{"name":"n"},"initialization":{"infrastructureProvisioned":true},
			"conditions":[{"type":"Ready","status":"False","reason":"R","message":"m"},{"type":"NodeHealthy","status":"True","reason":"NodeHealthy"}]}}`,
	} {
		machine := &Machine{}
		if err := json.Unmarshal([]byte(text), machine); err != nil {
			t.Fatal(err)
		}
		spec := machine.Spec
		if spec.ClusterName != "c" || *spec.Bootstrap.DataSecretName != "data" || spec.FailureDomain != "b" || !spec.InfrastructureRef.Is(ours) ||
			spec.InfrastructureRef.Name != "m" || !machine.HasNode() || !machine.Healthy() {
			t.Errorf("%s: %+v", version, machine)
		}
	}
}

// TestCluster_DecodesBothVersions checks that the same Cluster can be decoded from both versions.
func TestCluster_DecodesBothVersions(t *testing.T) {
	for version, text := range map[string]string{
		"v1beta1": `{"spec":{"paused":true,"controlPlaneEndpoint":{"host":"h","port":6443},"infrastructureRef":{"apiVersion":"g/v1","kind":"K","name":"c"}},
			"status":{"infrastructureReady":true,"failureDomains":{"a":{"controlPlane":true}}}}`,
		"v1beta2": `{"spec":{"paused":true,"controlPlaneEndpoint":{"host":"h","port":6443},"infrastructureRef":{"apiGroup":"g","kind":"K","name":"c"}},
			"status":{"initialization":{"infrastructureProvisioned":true},"failureDomains":[{"name":"a"}]}}`,
	} {
		cluster := &Cluster{}
		if err := json.Unmarshal([]byte(text), cluster); err != nil {
			t.Fatal(err)
		}
		if !cluster.Spec.Paused || !cluster.Spec.ControlPlaneEndpoint.Known() || !cluster.HasInfrastructure() ||
			!cluster.Spec.InfrastructureRef.Is(schema.GroupKind{Group: "g", Kind: "K"}) {
			t.Errorf("%s: %+v", version, cluster)
		}
	}
	if (&Cluster{}).HasInfrastructure() || (&Machine{}).HasNode() {
		t.Error("an empty object has infrastructure or a node")
	}
}

func TestDeepCopyObject_SharesNothing(t *testing.T) {
	machine := &Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{"a": "b"}}}
	machine.Spec.Bootstrap.DataSecretName = new("data")
	machine.Status.NodeRef = &Reference{Name: "n"}
	list := &MachineList{Items: []Machine{*machine}}
	copied := list.DeepCopyObject().(*MachineList)
	if diff := cmp.Diff(list, copied); diff != "" {
		t.Fatalf("copy (-want +got):\n%s", diff)
	}
	m := &copied.Items[0]
	m.Labels["a"], *m.Spec.Bootstrap.DataSecretName, m.Status.NodeRef.Name = "x", "x", "x"
	if machine.Labels["a"] != "b" || *machine.Spec.Bootstrap.DataSecretName != "data" || machine.Status.NodeRef.Name != "n" {
		t.Errorf("a change of the copy changed the original: %+v", machine)
	}
	clusters := &ClusterList{Items: []Cluster{{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}}}
	clusters.DeepCopyObject().(*ClusterList).Items[0].Labels["a"] = "x"
	if clusters.Items[0].Labels["a"] != "b" {
		t.Error("a change of the copy changed the labels of the original")
	}
}

func TestOwner(t *testing.T) {
	machine := &Machine{}
	machine.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "cluster.x-k8s.io/v1beta1", Kind: "MachineSet", Name: "set"},
		{APIVersion: "machine.sapcloud.io/v1alpha1", Kind: "Machine", Name: "of another API"},
	}
	if got := Owner(machine, MachineKind); got != "" {
		t.Errorf("owner %q", got)
	}
	machine.OwnerReferences = append(machine.OwnerReferences, metav1.OwnerReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Machine", Name: "m"})
	if got := Owner(machine, MachineKind); got != "m" {
		t.Errorf("owner %q", got)
	}
}

// TestDiscover checks that the newest known version that is served is used. If there is none, the error names the
// missing resources. Other failures return other errors.
func TestDiscover(t *testing.T) {
	const both = `{"kind":"APIResourceList","apiVersion":"v1","resources":[{"name":"machines"},{"name":"clusters"}]}`
	for name, tc := range map[string]struct {
		served  map[string]string
		fails   int
		want    schema.GroupVersion
		missing bool
	}{
		"both":          {served: map[string]string{"v1beta1": both, "v1beta2": both}, want: V1Beta2},
		"v1beta1 only":  {served: map[string]string{"v1beta1": both}, want: V1Beta1},
		"v1beta2 only":  {served: map[string]string{"v1beta2": both}, want: V1Beta2},
		"Machines only": {served: map[string]string{"v1beta2": `{"kind":"APIResourceList","apiVersion":"v1","resources":[{"name":"machines"}]}`}, missing: true},
		"none":          {missing: true},
		"server error":  {fails: http.StatusInternalServerError},
		"forbidden":     {fails: http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if tc.fails != 0 {
					w.WriteHeader(tc.fails)
					return
				}
				for version, response := range tc.served {
					if r.URL.Path == "/apis/cluster.x-k8s.io/"+version {
						_, _ = w.Write([]byte(response))
						return
					}
				}
				w.WriteHeader(http.StatusNotFound)
			}))
			defer server.Close()
			got, err := Discover(discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: server.URL}))
			if got != tc.want || errors.Is(err, ErrNotServed) != tc.missing || (err == nil) != (tc.want != schema.GroupVersion{}) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}
