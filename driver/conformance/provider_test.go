package conformance

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestProvider_OtherCluster checks where the tags of a cluster are found in a class.
func TestProvider_OtherCluster(t *testing.T) {
	for name, tc := range map[string]struct{ spec, want string }{
		"object":     {`{"tags":{"kubernetes.io/cluster/c":"1","team":"blue"}}`, `{"tags":{"kubernetes.io/cluster/c-other":"1","team":"blue"}}`},
		"list":       {`{"tags":["kubernetes-io-cluster-c","blue"]}`, `{"tags":["kubernetes-io-cluster-c-other","blue"]}`},
		"nested":     {`{"spec":{"tags":{"kubernetes.io-cluster-c":"1"}}}`, `{"spec":{"tags":{"kubernetes.io-cluster-c-other":"1"}}}`},
		"in a list":  {`{"disks":[{"tags":["kubernetes-io-cluster-c"]}]}`, `{"disks":[{"tags":["kubernetes-io-cluster-c-other"]}]}`},
		"not a tag":  {`{"name":"kubernetes.io/cluster/c"}`, ""},
		"no cluster": {`{"spec":{"tags":{"team":"blue"}}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			class := &v1alpha1.MachineClass{ProviderSpec: runtime.RawExtension{Raw: []byte(tc.spec)}}
			got := ""
			if other := (Provider{Class: class}).otherCluster(); other != nil {
				got = string(other.ProviderSpec.Raw)
			}
			if got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if string(class.ProviderSpec.Raw) != tc.spec {
				t.Errorf("the class has become %s", class.ProviderSpec.Raw)
			}
		})
	}
}
