package manager

import (
	ctrl "sigs.k8s.io/controller-runtime"
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
func addWebhooks(mgr ctrl.Manager, cfg Config) error {
	if cfg.Webhooks.Port == 0 {
		return nil
	}
	if cfg.runs(HalfMachines) {
		if err := warnings.Add(mgr, warnings.Options{Live: mgr.GetAPIReader(), Drivers: cfg.Drivers}); err != nil {
			return err
		}
	}
	if !cfg.has(APICAPI) {
		return nil
	}
	mgr.GetWebhookServer().Register(hooks.Path, hooks.New(hooks.Options{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Drivers: cfg.Drivers, Log: mgr.GetLogger().WithName("in-place-updates"),
	}))
	return webhooks.Add(mgr)
}
