package controller

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/gardener/machine-controller-manager/pkg/client/clientset/versioned"
)

// TestClient_SendsName checks that a client reaches the API server with its name, and that the builder's configuration
// stays unchanged.
func TestClient_SendsName(t *testing.T) {
	var agents []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agents = append(agents, r.UserAgent())
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"machine.sapcloud.io/v1alpha1","kind":"MachineList","items":[{"metadata":{"name":"m"}}]}`))
	}))
	defer server.Close()
	b := SimpleClientBuilder{ClientConfig: &rest.Config{Host: server.URL}}
	client, err := b.Client("one")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []versioned.Interface{client, b.ClientOrDie("two")} {
		machines, err := c.MachineV1alpha1().Machines("n").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(machines.Items) != 1 || machines.Items[0].Name != "m" {
			t.Errorf("got %v, %v", machines, err)
		}
	}
	if len(agents) != 2 || !strings.HasSuffix(agents[0], "/one") || !strings.HasSuffix(agents[1], "/two") {
		t.Errorf("got user agents %q", agents)
	}
	if b.ClientConfig.UserAgent != "" || !strings.HasSuffix(b.ConfigOrDie("three").UserAgent, "/three") {
		t.Errorf("got user agent %q of the builder", b.ClientConfig.UserAgent)
	}
}

// TestClient_RejectsInvalidConfig checks the error of a configuration without a valid server.
func TestClient_RejectsInvalidConfig(t *testing.T) {
	if _, err := (SimpleClientBuilder{ClientConfig: &rest.Config{Host: "http://a b"}}).Client("one"); err == nil {
		t.Error("got a client")
	}
}
