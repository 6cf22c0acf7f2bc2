package manager

import (
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/millwright-dev/millwright/internal/controllers/capi/hooks"
	"github.com/millwright-dev/millwright/internal/controllers/capi/webhooks"
	"github.com/millwright-dev/millwright/internal/controllers/warnings"
)

// Webhooks configures the optional webhooks: of APIMCM those of package warnings, which a manager with
// HalfMachines has, and of APICAPI those of its own, with its hooks.
type Webhooks struct {
	// Port of the webhooks; 0 serves none.
	Port int
	// CertDir holds tls.crt and tls.key.
	CertDir string
}

// server is nil if there is no port.
func (w Webhooks) server() webhook.Server {
	if w.Port == 0 {
		return nil
	}
	return newWebhookServer(w)
}

// addWebhooks adds those of the APIs that are served. Managers that stand by answer, too.
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
