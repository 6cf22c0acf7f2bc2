package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/millwright-dev/millwright/internal/fleet"
)

// targets serves the target clusters of a fleet. All of them are one API server, but each cluster sees only its own nodes
// and has its own identity, so that the caches of the fleet have the size that they have with separate API servers.
type targets struct {
	url, token string
	ca         []byte
	server     *http.Server
	forward    http.Handler
}

// clusterLabel is the label of the nodes of a cluster. Its value is the namespace of the cluster.
const clusterLabel = "bench.millwright.dev/cluster"

// serveTargets serves target clusters until stop is called. access is the access to the API server.
func serveTargets(access *rest.Config) (*targets, error) {
	transport, err := rest.TransportFor(access)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(access.Host)
	if err != nil {
		return nil, err
	}
	authority, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot create the certificate of the target clusters: %w", err)
	}
	pair, err := tls.X509KeyPair(authority, key)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &targets{url: "https://" + listener.Addr().String(), token: rand.Text(), ca: authority}
	discard := stdlog.New(io.Discard, "", 0)
	t.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			r.Out.Header.Del("Authorization")
		},
		Transport: transport, FlushInterval: -1, ErrorLog: discard,
	}
	t.server = &http.Server{
		Handler: t, ErrorLog: discard, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13},
	}
	go func() { _ = t.server.ServeTLS(listener, "", "") }() // until stop is called
	return t, nil
}

// stop closes all connections.
func (t *targets) stop() error { return t.server.Close() }

// kubeconfig returns the kubeconfig of the target cluster of a namespace.
func (t *targets) kubeconfig(namespace string) ([]byte, error) {
	file := clientcmdapi.NewConfig()
	file.Clusters[namespace] = &clientcmdapi.Cluster{Server: t.url + "/" + namespace, CertificateAuthorityData: t.ca}
	file.AuthInfos[namespace] = &clientcmdapi.AuthInfo{Token: t.token}
	file.Contexts[namespace] = &clientcmdapi.Context{Cluster: namespace, AuthInfo: namespace}
	file.CurrentContext = namespace
	return clientcmd.Write(*file)
}

// ServeHTTP implements http.Handler. The first segment of the path is the namespace of the cluster.
func (t *targets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+t.token)) != 1 {
		http.Error(w, "unauthorized", http.StatusUnauthorized)
		return
	}
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
	t.forward.ServeHTTP(w, r)
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
