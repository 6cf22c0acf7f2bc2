package legacyclass

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestSecretsOf checks that references to other namespaces are ignored.
func TestSecretsOf(t *testing.T) {
	reference := func(name, namespace string) map[string]any {
		return map[string]any{"name": name, "namespace": namespace}
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"secretRef": reference("own", "a"), "credentialsSecretRef": reference("theirs", "b")}}}
	object.SetNamespace("a")
	if diff := cmp.Diff([]string{"own"}, secretsOf(object)); diff != "" {
		t.Error(diff)
	}
}
