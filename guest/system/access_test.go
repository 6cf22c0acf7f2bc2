package system

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/guest/kube"
	"github.com/millwright-dev/millwright/guest/metadata"
)

func links(address string) []metadata.Link {
	return []metadata.Link{{Address: netip.MustParseAddr(address), Peer: netip.MustParseAddr("10.77.0.2")}}
}

// accessTo writes a kubeconfig of a node for a server, with the certificate in a file, like the kubelet's.
func accessTo(t *testing.T, server *httptest.Server) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:vm-1"}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	both := slices.Concat(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}),
	)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	path := filepath.Join(dir, "kubelet.conf")
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "current.pem"), both, 0o600),
		os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\nclusters:\n- name: one\n  cluster: {server: '"+server.URL+
			"', certificate-authority-data: "+base64.StdEncoding.EncodeToString(authority)+"}\nusers:\n- name: node\n  user: {client-certificate: "+
			dir+"/current.pem, client-key: "+dir+"/current.pem}\n"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFindPodNetwork: the node's name is in its certificate, and the network is in the cluster's configuration.
func TestFindPodNetwork(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != kubeadmConfig {
			t.Errorf("got request %s %s", r.Method, r.URL)
		}
		_ = json.NewEncoder(w).Encode(object{"data": object{"ClusterConfiguration": "networking:\n  podSubnet: 10.78.0.0/16\n"}})
	}))
	defer server.Close()
	b := &Bootstrap{Node: &Node{}}
	subnet, err := b.findPodNetwork(t.Context(), accessTo(t, server))
	if name := b.Node.Data.NodeName; err != nil || subnet != "10.78.0.0/16" || name != "vm-1" {
		t.Errorf("got %s, %v, node %s", subnet, err, name)
	}
}

// TestAllowFlannel: both objects are created. Existing objects are not a failure; any other error is.
func TestAllowFlannel(t *testing.T) {
	status, kinds := http.StatusCreated, []string{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var created struct{ Kind string }
		if err := json.NewDecoder(r.Body).Decode(&created); err != nil {
			t.Error(err)
		}
		if !strings.HasSuffix(r.URL.Path, "/"+strings.ToLower(created.Kind)+"s") {
			t.Errorf("got kind %s in a request to %s", created.Kind, r.URL)
		}
		kinds = append(kinds, created.Kind)
		w.WriteHeader(status)
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	path := accessTo(t, server)
	for _, status = range []int{http.StatusCreated, http.StatusConflict} {
		kinds = nil
		if err := allowFlannel(t.Context(), path); err != nil || len(kinds) != 2 {
			t.Errorf("status %d: got error %v and kinds %v", status, err, kinds)
		}
	}
	status = http.StatusForbidden
	if err := allowFlannel(t.Context(), path); !kube.IsStatus(err, http.StatusForbidden) {
		t.Errorf("status %d: got error %v", status, err)
	}
}

func TestReadAccess_NamesFile(t *testing.T) {
	const secret = "0123456789abcdef"
	dir := t.TempDir()
	for name, content := range map[string]string{
		"no YAML": "\t" + secret, "no user": "clusters: [{name: a}]\n", "a type": "users: " + secret + "\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readAccess(path)
		if err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if _, err := readAccess(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got error %v", err)
	}
}
