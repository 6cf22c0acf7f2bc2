package legacyclass

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// callTimeout limits the driver call for one class.
const callTimeout = time.Minute

// Reasons of events.
const (
	reasonMigrated = "Migrated"
	reasonFailed   = "FailedMigration"
)

// findClass reads the MachineClass of the same name, if it exists.
func (c *Controller) findClass(ctx context.Context, s *scope) flow.Result {
	class := &v1alpha1.MachineClass{}
	err := c.Client.Get(ctx, s.key, class)
	if err == nil {
		s.class = class
		s.about.class = string(class.UID) + "/" + class.ResourceVersion
	}
	if client.IgnoreNotFound(err) != nil {
		return flow.Fail(fmt.Errorf("reading MachineClass %s: %w", s.key, err))
	}
	return flow.Continue()
}

// createClass creates the MachineClass unless it exists and matches. If the object is marked as migrated, the
// MachineClass takes precedence, even if users have changed it.
func (c *Controller) createClass(ctx context.Context, s *scope) flow.Result {
	if len(s.users) == 0 || s.class != nil && s.migrated() {
		return flow.Continue()
	}
	typed, err := decode(s.object)
	if err != nil {
		return c.refused(ctx, s, err.Error())
	}
	return c.fill(ctx, s, typed)
}

// fill lets the driver fill the MachineClass, and writes it.
func (c *Controller) fill(ctx context.Context, s *scope, typed any) flow.Result {
	name, d, err := c.Drivers.Migrator(s.kind, s.object.GetAnnotations()[legacy.AnnotationProvider])
	if err != nil {
		return c.noDriver(ctx, s, err)
	}
	s.about.driver, s.about.called = name, true
	if wait, why := c.recall(s).wait(s.about, c.Clock.Now()); why != "" {
		return flow.Wait(wait, why)
	}
	class, err := c.generate(ctx, s, d, typed)
	if err != nil {
		return c.driverFailed(ctx, s, err)
	}
	switch {
	case s.class == nil:
		metav1.SetMetaDataAnnotation(&class.ObjectMeta, legacy.AnnotationMigratedFrom, s.kind)
		controllerutil.AddFinalizer(class, v1alpha1.FinalizerMCM)
		if err = c.Client.Create(ctx, class); apierror.Taken(err) {
			err = edge.ErrStale
		}
	case same(s.class, class):
	case s.begun(): // the object was edited during the migration
		err = c.updateClass(ctx, s, class)
	default:
		return c.refused(ctx, s, fmt.Sprintf("there is already a different MachineClass %q; delete one of the two objects", s.key.Name))
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("writing MachineClass %s: %w", s.key, err))
	}
	c.kinds[s.kind].memory.Forget(s.key)
	return flow.Continue()
}

// updateClass updates the MachineClass after the legacy object was edited, unless the class is in use.
func (c *Controller) updateClass(ctx context.Context, s *scope, class *v1alpha1.MachineClass) error {
	used, err := c.inUse(ctx, s)
	if err != nil || used {
		return err
	}
	return c.Client.Patch(ctx, class, expectations.Locked(s.class))
}

// generate calls the driver of s.about. In the metadata, the driver may only change labels and annotations, and it
// must serve the resulting class.
func (c *Controller) generate(ctx context.Context, s *scope, d driver.Driver, typed any) (*v1alpha1.MachineClass, error) {
	migrator, ok := driver.As[driver.ClassMigrator](d)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the driver does not migrate classes")
	}
	class := &v1alpha1.MachineClass{}
	if s.class != nil {
		class = s.class.DeepCopy()
	}
	class.Namespace, class.Name = s.key.Namespace, s.key.Name
	meta := class.ObjectMeta.DeepCopy()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := migrator.GenerateMachineClassForMigration(ctx, &driver.GenerateMachineClassForMigrationRequest{
		ProviderSpecificMachineClass: typed, MachineClass: class,
		ClassSpec: &v1alpha1.ClassSpec{APIGroup: legacy.GroupName, Kind: s.kind, Name: s.key.Name},
	})
	if err != nil {
		return nil, err
	}
	meta.Labels, meta.Annotations = maps.Clone(class.Labels), maps.Clone(class.Annotations)
	class.ObjectMeta, class.TypeMeta = *meta, metav1.TypeMeta{}
	class.Provider = cmp.Or(class.Provider, s.about.driver) // no other driver serves the class
	switch {
	case len(class.ProviderSpec.Raw) == 0:
		return nil, status.Error(codes.Internal, "the driver returned no providerSpec")
	case !isObject(class.ProviderSpec.Raw): // an API server would reject it
		return nil, status.Error(codes.Internal, "the driver returned a providerSpec that is not a JSON object")
	case !registry.Serves(s.about.driver, class):
		return nil, status.Error(codes.Internal, fmt.Sprintf("the driver %q created a class for the provider %q, which it does not serve", s.about.driver, class.Provider))
	}
	return class, nil
}

func isObject(raw []byte) bool {
	var fields map[string]json.RawMessage
	return json.Unmarshal(raw, &fields) == nil && fields != nil
}

// same reports whether two classes describe the same VMs.
func same(a, b *v1alpha1.MachineClass) bool {
	var specs [2]any
	for i, class := range []*v1alpha1.MachineClass{a, b} {
		if json.Unmarshal(class.ProviderSpec.Raw, &specs[i]) != nil {
			return false
		}
	}
	return equality.Semantic.DeepEqual(specs[0], specs[1]) && a.Provider == b.Provider &&
		equality.Semantic.DeepEqual(a.SecretRef, b.SecretRef) && equality.Semantic.DeepEqual(a.CredentialsSecretRef, b.CredentialsSecretRef) &&
		equality.Semantic.DeepEqual(a.NodeTemplate, b.NodeTemplate)
}

// refused reports a problem that only a user can solve. It changes nothing.
func (c *Controller) refused(ctx context.Context, s *scope, why string) flow.Result {
	c.report(ctx, s, why, outcome{message: why})
	return flow.Stop(why)
}

// noDriver reports that no driver migrates the object. It changes nothing. A driver that registers later may migrate
// it.
func (c *Controller) noDriver(ctx context.Context, s *scope, err error) flow.Result {
	found, _ := status.FromError(err)
	why := fmt.Sprintf("%s; name one in the annotation %s", found.Message(), legacy.AnnotationProvider)
	if named := s.object.GetAnnotations()[legacy.AnnotationProvider]; named != "" {
		why = fmt.Sprintf("annotation %s: %s", legacy.AnnotationProvider, found.Message())
	}
	c.report(ctx, s, why, outcome{message: why, final: status.Is(err, codes.Unimplemented)})
	return flow.Stop(why)
}

// driverFailed reports a failure of the driver. It changes nothing. A driver that does not support the kind is not
// called again with the same inputs.
func (c *Controller) driverFailed(ctx context.Context, s *scope, err error) flow.Result {
	failed := outcome{code: status.Code(err), message: fmt.Sprintf("the driver cannot convert it to a MachineClass: %v", err)}
	topic := fmt.Sprint(failed.code, s.about.driver, s.about.generation) // messages may differ each time
	if failed.code == codes.Unimplemented {
		failed.final = true
		c.report(ctx, s, topic, failed)
		return flow.Stop(failed.message)
	}
	failed.backoff = c.Policy.Backoff(timeouts.Migrate, failed.code)
	if last := c.recall(s).failure(); last != nil && last.code == failed.code && last.about == s.about {
		failed.backoff = last.backoff
	}
	wait := failed.backoff.Step()
	failed.retry = c.Clock.Now().Add(wait)
	c.report(ctx, s, topic, failed)
	return flow.Wait(wait, failed.message)
}

// report records an outcome. It also logs it and sends an event, unless the last outcome had the same topic.
func (c *Controller) report(ctx context.Context, s *scope, topic string, o outcome) {
	o.about, o.message = s.about, messages.Shorten(o.message, maxMessage)
	if !c.kinds[s.kind].memory.Of(s.key).record(topic, o) {
		return
	}
	ctrl.LoggerFrom(ctx).Info("cannot migrate a machine class", "object", s.identity(), "reason", o.message)
	c.Events.Eventf(s.object, corev1.EventTypeWarning, reasonFailed, "Cannot migrate to a MachineClass: %s", o.message)
}
