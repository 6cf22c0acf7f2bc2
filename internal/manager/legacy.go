package manager

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/legacyclass"
	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

// migration adapts the controller of legacy classes to the Machine controller.
type migration struct{ *legacyclass.Controller }

// Migration is for machine.Options.Migration.
func (m migration) Migration(ctx context.Context, namespace string, class v1alpha1.ClassSpec) (machine.Migration, error) {
	found, err := m.Controller.Migration(ctx, namespace, class)
	return machine.Migration(found), err
}

// olderClasses returns the controller of the legacy class kinds, which preceded MachineClass.
func (a *assembly) olderClasses() migration {
	return migration{legacyclass.New(legacyclass.Options{
		Client: a.mgr.GetClient(), Cache: a.mgr.GetCache(), Drivers: a.Drivers, Kinds: a.olderKinds,
		Events: a.events.recorder("machineclass-migration"), Clock: clock.RealClock{},
		Policy: timeouts.Policy{ResourceExhausted: a.ResourceExhaustedRetry, CreationTimeout: a.CreationTimeout},
	})}
}

// servedKinds returns the legacy class kinds that the control cluster serves and the manager is allowed to
// read. Most clusters have none. CRDs that are installed later are not detected.
func servedKinds(ctx context.Context, cfg Config) ([]string, error) {
	config := rest.CopyConfig(cfg.Control)
	config.Timeout = controlTimeout
	discoverer, err := discoverer(config)
	if err != nil {
		return nil, err
	}
	var list *metav1.APIResourceList
	err = retry(ctx, func() (err error) {
		list, err = discoverer.ServerResourcesForGroupVersion(legacy.SchemeGroupVersion.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("control cluster at %s: %w", config.Host, err)
	}
	served := map[string]bool{}
	for _, resource := range list.APIResources {
		served[resource.Name] = true
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("control cluster: %w", err)
	}
	var kinds []string
	denied := map[string]error{}
	// All kinds are retried together, because retries take rolesTimeout if one of them is forbidden.
	err = retry(ctx, func() (err error) {
		kinds, err = readableKinds(ctx, client, cfg.Namespace, served, denied)
		return err
	})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("control cluster at %s: %w", config.Host, err)
	}
	for kind, err := range denied {
		cfg.Log.Info("reading legacy classes is forbidden; they are not migrated", "kind", kind, "reason", err.Error())
	}
	return kinds, nil
}

// readableKinds returns the legacy class kinds that are served and that the manager may read. It stores the errors for kinds
// that it may not read in denied, and returns one of these errors as forbidden, or the error of another failed request.
func readableKinds(ctx context.Context, client metadata.Interface, namespace string, served map[string]bool, denied map[string]error) (kinds []string, forbidden error) {
	clear(denied)
	for _, kind := range legacy.Kinds() {
		resource := legacy.Resource(kind)
		if !served[resource] {
			continue
		}
		_, err := client.Resource(legacy.SchemeGroupVersion.WithResource(resource)).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case apierrors.IsForbidden(err):
			denied[kind], forbidden = err, err
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", resource, err)
		default:
			kinds = append(kinds, kind)
		}
	}
	return kinds, forbidden
}
