package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/internal/fleet"
)

// targets serves the target clusters of a fleet. All of them are one API server, but each cluster sees only its own nodes
// and has its own identity, so that the caches of the fleet have the size that they have with separate API servers.
type targets struct{ *proxy }

// clusterLabel is the label of the nodes of a cluster. Its value is the namespace of the cluster.
const clusterLabel = "bench.millwright.dev/cluster"

// serveTargets serves target clusters until stop is called. access is the access to the API server.
func serveTargets(access *rest.Config) (*targets, error) {
	p, err := serveProxy(access, separateClusters)
	if err != nil {
		return nil, err
	}
	return &targets{p}, nil
}

// kubeconfig returns the kubeconfig of the target cluster of a namespace.
func (t *targets) kubeconfig(namespace string) ([]byte, error) {
	return t.proxy.kubeconfig(namespace, "/"+namespace)
}

// separateClusters returns the handler of a proxy. The first segment of the path is the namespace of the cluster.
func separateClusters(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		namespace, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		r.URL.Path, r.URL.RawPath = "/"+path, ""
		switch {
		case r.Method == http.MethodGet && path == "api/v1/namespaces/"+metav1.NamespaceSystem:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(&corev1.Namespace{ // the client notices an incomplete response
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
				ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: types.UID(namespace)},
			})
			return
		case r.Method == http.MethodGet && path == "api/v1/nodes":
			r.URL.RawQuery = selectNodes(r.URL.Query(), namespace)
		}
		next.ServeHTTP(w, r)
	})
}

// selectNodes restricts a list or watch to the nodes of a cluster.
func selectNodes(query url.Values, namespace string) string {
	selector := clusterLabel + "=" + namespace
	if other := query.Get("labelSelector"); other != "" {
		selector += "," + other
	}
	query.Set("labelSelector", selector)
	return query.Encode()
}

// declareTargets creates the target clusters, and the Secrets with their kubeconfigs.
func (w *setup) declareTargets(ctx context.Context) (err error) {
	if w.load.clusters == 0 {
		return nil
	}
	if w.targets, err = serveTargets(w.cp.RESTConfig()); err != nil {
		return fmt.Errorf("cannot serve the target clusters: %w", err)
	}
	namespaces := w.load.namespaces()
	return inParallel(ctx, len(namespaces), func(ctx context.Context, i int) error {
		kubeconfig, err := w.targets.kubeconfig(namespaces[i])
		if err != nil {
			return err
		}
		return w.client.Create(ctx, targetSecret(namespaces[i], kubeconfig))
	})
}

// targetSecret returns the Secret of a namespace with the kubeconfig of its target cluster.
func targetSecret(namespace string, kubeconfig []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "target", Labels: map[string]string{fleet.Prefix + "target": "true"}},
		Data:       map[string][]byte{fleet.KubeconfigKey: kubeconfig},
	}
}
