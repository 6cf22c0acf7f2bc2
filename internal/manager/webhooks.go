package manager

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"

	certutil "k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/millwright-dev/millwright/internal/controllers/capi/hooks"
	"github.com/millwright-dev/millwright/internal/controllers/capi/webhooks"
	"github.com/millwright-dev/millwright/internal/controllers/warnings"
)

// Webhooks configures the optional webhooks. APIMCM has the webhooks of package warnings, which HalfMachines
// serves. APICAPI has its own webhooks and runtime hooks.
type Webhooks struct {
	// Port is the port of the webhooks. If 0, no webhooks are served.
	Port int
	// CertDir is the directory with tls.crt and tls.key.
	CertDir string
	// HookClientCAs is a PEM file with the authorities of client certificates. If it is set, the runtime hooks of
	// Cluster API accept only clients with such a certificate. It is read for each request. If empty, they accept all
	// clients.
	HookClientCAs string
}

// server returns the webhook server, or nil if there is no port.
func (w Webhooks) server() webhook.Server {
	if w.Port == 0 {
		return nil
	}
	return newWebhookServer(w)
}

// addWebhooks adds the webhooks of the APIs that the manager serves. Standby managers serve them, too.
func (a *assembly) addWebhooks() error {
	if a.Webhooks.Port == 0 {
		return nil
	}
	if a.runs(HalfMachines) {
		if err := warnings.Add(a.mgr, warnings.Options{Live: a.mgr.GetAPIReader(), Drivers: a.Drivers}); err != nil {
			return err
		}
	}
	if !a.has(APICAPI) {
		return nil
	}
	serving := hooks.New(hooks.Options{
		Client: a.mgr.GetClient(), Live: a.mgr.GetAPIReader(), Drivers: a.Drivers, Log: a.mgr.GetLogger().WithName("in-place-updates"),
	})
	authenticated, err := a.Webhooks.onlyHookClients(serving)
	if err != nil {
		return err
	}
	a.mgr.GetWebhookServer().Register(hooks.Path, authenticated)
	return webhooks.Add(a.mgr)
}

// onlyHookClients returns a handler that passes only requests with a client certificate of HookClientCAs, or all
// requests if it is empty. It returns an error if the file cannot be used.
func (w Webhooks) onlyHookClients(next http.Handler) (http.Handler, error) {
	if w.HookClientCAs == "" {
		return next, nil
	}
	if _, err := certutil.NewPool(w.HookClientCAs); err != nil {
		return nil, fmt.Errorf("reading the authorities of clients of runtime hooks: %w; check --runtime-hook-client-ca-file", err)
	}
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if err := w.verifyHookClient(r.TLS); err != nil {
			ctrl.Log.WithName("webhooks").V(1).Info("refused a client of runtime hooks", "client", r.RemoteAddr, "err", err.Error())
			http.Error(out, "runtime hooks require a valid client certificate; start Cluster API with --runtime-extension-client-cert-file", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(out, r)
	}), nil
}

// verifyHookClient returns an error unless the client of a connection has a certificate of HookClientCAs that is valid
// now.
func (w Webhooks) verifyHookClient(state *tls.ConnectionState) error {
	if state == nil || len(state.PeerCertificates) == 0 {
		return errors.New("the client has no certificate")
	}
	roots, err := certutil.NewPool(w.HookClientCAs)
	if err != nil {
		return err
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range state.PeerCertificates[1:] {
		intermediates.AddCert(certificate)
	}
	_, err = state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}
