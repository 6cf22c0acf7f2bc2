package join

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/guest/kube"
)

// ErrDiscovery means that the signature of the ConfigMap cluster-info is not valid.
var ErrDiscovery = errors.New("the cluster's public information cannot be trusted")

const (
	clusterInfoPath  = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
	clusterInfoKey   = "kubeconfig"
	signaturePrefix  = "jws-kubeconfig-"
	tokenSecretBegin = 7 // after the six letters of the ID and the dot
)

// discover returns the certificate authority of a server. Like kubeadm, it reads a public ConfigMap from the
// unverified server, which is signed with the secret of the bootstrap token.
func discover(ctx context.Context, server, token string) ([]byte, error) {
	client, err := kube.New(kube.Access{Server: server})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var info struct {
		Data map[string]string `json:"data"`
	}
	if err := client.Get(ctx, clusterInfoPath, &info); err != nil {
		return nil, fmt.Errorf("reading the ConfigMap cluster-info: %w", err)
	}
	return authorityOf(info.Data, token)
}

// authorityOf verifies the data of the ConfigMap, and returns its certificate authority.
func authorityOf(data map[string]string, token string) ([]byte, error) {
	id, _, _ := strings.Cut(token, ".")
	kubeconfig := data[clusterInfoKey]
	if err := verify(data[signaturePrefix+id], kubeconfig, token); err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Authority []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
	}
	if err := yaml.Unmarshal([]byte(kubeconfig), &config); err != nil {
		return nil, fmt.Errorf("%w: its kubeconfig cannot be read", ErrDiscovery)
	}
	if len(config.Clusters) != 1 || len(config.Clusters[0].Cluster.Authority) == 0 {
		return nil, fmt.Errorf("%w: its kubeconfig does not have exactly one cluster with a certificate authority", ErrDiscovery)
	}
	return config.Clusters[0].Cluster.Authority, nil
}

// verify verifies a detached JSON web signature (RFC 7515, appendix F) with HMAC-SHA-256 and the
// secret of the token.
func verify(signature, content, token string) error {
	id := token[:tokenSecretBegin-1]
	if signature == "" {
		return fmt.Errorf("%w: it has no signature for the token with ID %s", ErrDiscovery, id)
	}
	parts := strings.Split(signature, ".")
	if len(parts) != 3 || parts[1] != "" {
		return fmt.Errorf("%w: its signature is not a detached JSON web signature", ErrDiscovery)
	}
	encoding := base64.RawURLEncoding
	headerText, err := encoding.DecodeString(parts[0])
	if err != nil {
		return fmt.Errorf("%w: the header of its signature is not base64", ErrDiscovery)
	}
	var header struct {
		Algorithm string `json:"alg"`
		Key       string `json:"kid"`
	}
	if err := json.Unmarshal(headerText, &header); err != nil || header.Algorithm != "HS256" || header.Key != id {
		return fmt.Errorf("%w: its signature does not use HS256 and the token with ID %s", ErrDiscovery, id)
	}
	got, err := encoding.DecodeString(parts[2])
	if err != nil {
		return fmt.Errorf("%w: its signature is not base64", ErrDiscovery)
	}
	mac := hmac.New(sha256.New, []byte(token[tokenSecretBegin:]))
	mac.Write([]byte(parts[0] + "." + encoding.EncodeToString([]byte(content))))
	if !hmac.Equal(got, mac.Sum(nil)) {
		return fmt.Errorf("%w: its signature does not match", ErrDiscovery)
	}
	return nil
}
