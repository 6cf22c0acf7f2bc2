package capi

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// holdsSecretsOf reports whether this manager has the Secrets of a MillwrightMachine held. It
// would have to delete the VM.
func (c *Controller) holdsSecretsOf(machine *infrav1.MillwrightMachine) bool {
	return c.watched(machine) && machine.Spec.Driver == c.Driver
}

// holdSecrets has the Secrets held before the driver is asked for the first time.
func (c *Controller) holdSecrets(ctx context.Context, s *scope) flow.Result {
	if marks.Established(s.machine) || marks.Begun(s.machine) && !s.unheld {
		return flow.Continue()
	}
	return flow.Fail(c.secrets.SettleAll(ctx, s.machine, true))
}

// releaseSecrets lets go of the Secrets, which nobody may need any more. It leaves a mark
// before: a manager that begins here could not look for the VM without them.
func (c *Controller) releaseSecrets(ctx context.Context, s *scope) error {
	keys, err := c.secrets.OfMachine(ctx, s.machine)
	if err != nil || len(keys) == 0 {
		return err
	}
	if marks.Begun(s.machine) {
		metav1.SetMetaDataAnnotation(&s.machine.ObjectMeta, infrav1.AnnotationInstanceGone, "")
		if err := c.persistSpec(ctx, s); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return c.secrets.SettleAll(ctx, s.machine, false)
}
