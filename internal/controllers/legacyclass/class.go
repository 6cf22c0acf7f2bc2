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

// callTimeout is how long the driver may take for one class.
const callTimeout = time.Minute

// The reasons of events.
const (
	reasonMigrated = "Migrated"
	reasonFailed   = "FailedMigration"
)

// findClass looks for the MachineClass.
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

// makeClass makes the MachineClass, or finds that it says what it should. Of an object that is
// marked as migrated, the MachineClass is what counts, whatever users have made of it.
func (c *Controller) makeClass(ctx context.Context, s *scope) flow.Result {
	if len(s.users) == 0 || s.class != nil && s.migrated() {
		return flow.Continue()
	}
	typed, err := decode(s.object)
	if err != nil {
		return c.refused(ctx, s, err.Error())
	}
	return c.fill(ctx, s, typed)
}

// fill has the driver fill the MachineClass, and writes it.
func (c *Controller) fill(ctx context.Context, s *scope, typed any) flow.Result {
	name, d, err := c.Drivers.Migrator(s.kind, s.object.GetAnnotations()[legacy.AnnotationProvider])
	if err != nil {
		return c.nobody(ctx, s, err)
	}
	s.about.driver, s.about.asked = name, true
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
	case s.begun(): // the object was edited in mid-migration
		err = c.follow(ctx, s, class)
	default:
		return c.refused(ctx, s, fmt.Sprintf("there is a MachineClass %q already, which says something else: delete one of the two", s.key.Name))
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("writing MachineClass %s: %w", s.key, err))
	}
	c.kinds[s.kind].memory.Forget(s.key)
	return flow.Continue()
}

// follow gives the MachineClass what the older object says now, unless the class is in use.
func (c *Controller) follow(ctx context.Context, s *scope, class *v1alpha1.MachineClass) error {
	used, err := c.inUse(ctx, s)
	if err != nil || used {
		return err
	}
	return c.Client.Patch(ctx, class, expectations.Locked(s.class))
}

// generate calls the driver of s.about. Of the object's metadata it may only change what users may, and
// the class has to be one that it serves.
func (c *Controller) generate(ctx context.Context, s *scope, d driver.Driver, typed any) (*v1alpha1.MachineClass, error) {
	migrator, ok := driver.As[driver.ClassMigrator](d)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the driver migrates no classes")
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
	class.Provider = cmp.Or(class.Provider, s.about.driver) // which another driver would not serve
	switch {
	case len(class.ProviderSpec.Raw) == 0:
		return nil, status.Error(codes.Internal, "the driver returned no providerSpec")
	case !isObject(class.ProviderSpec.Raw): // no API server stores it
		return nil, status.Error(codes.Internal, "the driver returned a providerSpec that is no JSON object")
	case !registry.Serves(s.about.driver, class):
		return nil, status.Error(codes.Internal, fmt.Sprintf("the driver %q made a class for the provider %q, which it does not serve", s.about.driver, class.Provider))
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

// refused leaves everything as it is, since only a user can help.
func (c *Controller) refused(ctx context.Context, s *scope, why string) flow.Result {
	c.say(ctx, s, why, outcome{message: why})
	return flow.Stop(why)
}

// nobody leaves everything as it is, since no driver is to migrate the object. The next one that registers
// may.
func (c *Controller) nobody(ctx context.Context, s *scope, err error) flow.Result {
	found, _ := status.FromError(err)
	why := fmt.Sprintf("%s; the annotation %s can name one", found.Message(), legacy.AnnotationProvider)
	if named := s.object.GetAnnotations()[legacy.AnnotationProvider]; named != "" {
		why = fmt.Sprintf("annotation %s: %s", legacy.AnnotationProvider, found.Message())
	}
	c.say(ctx, s, why, outcome{message: why, final: status.Is(err, codes.Unimplemented)})
	return flow.Stop(why)
}

// driverFailed leaves everything as it is. A driver that does not migrate the kind is not asked again
// about the same.
func (c *Controller) driverFailed(ctx context.Context, s *scope, err error) flow.Result {
	failed := outcome{code: status.Code(err), message: fmt.Sprintf("the driver cannot make a MachineClass of it: %v", err)}
	topic := fmt.Sprint(failed.code, s.about.driver, s.about.generation) // messages may differ each time
	if failed.code == codes.Unimplemented {
		failed.final = true
		c.say(ctx, s, topic, failed)
		return flow.Stop(failed.message)
	}
	failed.backoff = c.Policy.Backoff(timeouts.Migrate, failed.code)
	if last := c.recall(s).failure(); last != nil && last.code == failed.code && last.about == s.about {
		failed.backoff = last.backoff
	}
	wait := failed.backoff.Step()
	failed.retry = c.Clock.Now().Add(wait)
	c.say(ctx, s, topic, failed)
	return flow.Wait(wait, failed.message)
}

// say notes an outcome, and tells users unless what was said last was about the same.
func (c *Controller) say(ctx context.Context, s *scope, same string, o outcome) {
	o.about, o.message = s.about, messages.Shorten(o.message, longestMessage)
	if !c.kinds[s.kind].memory.Of(s.key).note(same, o) {
		return
	}
	ctrl.LoggerFrom(ctx).Info("cannot migrate a machine class; nothing is changed", "object", s.identity(), "reason", o.message)
	c.Events.Eventf(s.object, corev1.EventTypeWarning, reasonFailed, "Not migrated to a MachineClass: %s.", o.message)
}
