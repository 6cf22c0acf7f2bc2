package manager

import (
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
	a.mgr.GetWebhookServer().Register(hooks.Path, hooks.New(hooks.Options{
		Client: a.mgr.GetClient(), Live: a.mgr.GetAPIReader(), Drivers: a.Drivers, Log: a.mgr.GetLogger().WithName("in-place-updates"),
	}))
	return webhooks.Add(a.mgr)
}
