package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/millwright-dev/millwright/internal/ca"
)

// probeTimeout bounds one question to a child that has its port open but does not answer.
const probeTimeout = 2 * time.Second

// probe returns the question whether a component does its work.
func (cp *ControlPlane) probe(name string) func(context.Context) error {
	switch name {
	case Etcd:
		return probeURL(loopbackURL(cp.ports.Etcd)+"/health", cp.pki[etcdCA], cp.pki[etcdClientCert])
	case APIServer:
		return probeURL(cp.URL()+"/readyz", cp.pki[clusterCA], cp.pki[adminCert])
	case ControllerManager:
		return probeURL(loopbackURL(cp.ports.ControllerManager)+"/healthz", cp.pki[clusterCA], cp.pki[adminCert])
	default:
		return probeURL(loopbackURL(cp.ports.Scheduler)+"/readyz", cp.pki[clusterCA], cp.pki[adminCert])
	}
}

// probeURL asks for a URL and takes 200 for a yes.
func probeURL(url string, authority, client ca.Pair) func(context.Context) error {
	roots := x509.NewCertPool()
	roots.AddCert(authority.Cert)
	questioner := &http.Client{
		Timeout: probeTimeout,
		Transport: &http.Transport{
			// Each question asks the child that is there now, over a connection of
			// its own, which leaves nothing behind when the child is gone.
			DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{
				MinVersion:   tls.VersionTLS12,
				RootCAs:      roots,
				Certificates: []tls.Certificate{{Certificate: [][]byte{client.Cert.Raw}, PrivateKey: client.Key}},
			},
		},
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := questioner.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answered %s: %s", url, response.Status, body)
		}
		return err
	}
}
