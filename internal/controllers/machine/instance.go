package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/controllers/machine/inputs"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap/userdata"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance/steps"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

func (c *Controller) instances() steps.Steps {
	return steps.Steps{Engine: c.Engine, Owners: ownership.Index{ownership.Machines(c.Client), c.OtherOwners}}
}

// owner returns the Machine as an owner that is never certain: users can edit the ID in its spec.
func owner(machine *v1alpha1.Machine) ownership.Owner {
	owner := ownership.OfMachine(machine)
	owner.Certain = false
	return owner
}

func named(other ownership.Owner) string {
	if other.Kind == ownership.KindMachine {
		return fmt.Sprintf("machine %q", other.Key.Name)
	}
	return other.String()
}

func ownedMessage(providerID string, other ownership.Owner) string {
	return fmt.Sprintf("VM %s is that of %s already", providerID, named(other))
}

func (c *Controller) inputs() inputs.Reader {
	return inputs.Reader{Client: c.Client, Drivers: c.Drivers, Migration: c.Migration}
}

func (c *Controller) ensureInstance(ctx context.Context, s *scope) flow.Result {
	if ownership.Established(s.machine) {
		return flow.Continue()
	}
	if errs := validation.Machine(s.machine); len(errs) > 0 {
		return c.creationImpossible(ctx, s, v1alpha1.CauseInvalidSpec, errs.ToAggregate().Error())
	}
	inputs, missing, err := c.inputs().OfMachine(ctx, s.machine)
	if err != nil {
		return flow.Fail(err)
	}
	if inputs.Migrating {
		return flow.Wait(migrationCheck, missing)
	}
	if missing == "" {
		missing = inputs.Invalid()
	}
	if missing != "" {
		return c.creationImpossible(ctx, s, v1alpha1.CauseInvalidClassInputs, missing)
	}
	other, err := c.instances().Owners.Conflicting(ctx, owner(s.machine), s.machine.Spec.ProviderID)
	switch {
	case err != nil:
		return flow.Fail(err)
	case other != nil:
		return c.creationImpossible(ctx, s, v1alpha1.CauseInstanceOwned, ownedMessage(s.machine.Spec.ProviderID, *other))
	case !controllerutil.ContainsFinalizer(inputs.Class, v1alpha1.FinalizerMCM): // without its class a VM cannot be deleted
		return flow.Wait(0, "the class to be held by our finalizer")
	}
	others, err := c.inputs().Choices(ctx, s.machine, inputs.Class)
	if err != nil {
		return flow.Fail(err)
	}
	return c.instances().Ensure(ctx, adapter{c: c, s: s, inputs: inputs, choices: others})
}

func (c *Controller) creationImpossible(ctx context.Context, s *scope, why, message string) flow.Result {
	left := c.creationTimeLeft(ctx, s)
	s.failedToCreate(passevents.Cause{Name: why}, message, left.Left)
	return flow.Wait(max(left.Wait, 0), message)
}

type adapter struct {
	c      *Controller
	s      *scope
	inputs inputs.Inputs
	// choices are other classes that a Machine without a VM may have.
	choices inputs.Choices
}

// Owner implements steps.Adapter.
func (a adapter) Owner() ownership.Owner { return owner(a.s.machine) }

// Request implements steps.Adapter.
func (a adapter) Request() instance.Request {
	return instance.Request{
		Machine:      a.s.machine,
		Class:        a.inputs.Class,
		Secret:       a.inputs.Secret,
		Prepare:      a.c.prepare(a.s.machine, a.inputs.Secret),
		NodeExpected: a.c.Target != nil,
		Capacity:     a.capacity(),
		Others:       a.choices.Versions(),
	}
}

// Record implements steps.Adapter. A new instance with the name of another's node is refused; one
// that is being deleted is recorded without its node.
func (a adapter) Record(ctx context.Context, found instance.Instance, location string) flow.Result {
	deleting := !a.s.machine.DeletionTimestamp.IsZero()
	if a.c.Target != nil && a.c.Target.Ready() && (deleting || a.s.machine.Spec.ProviderID == "") {
		stale, err := nodes.Taken(ctx, a.c.Target.Client(), a.c.Client, a.s.machine, found.NodeName, found.ProviderID)
		switch {
		case err != nil:
			return flow.Fail(err)
		case stale == "":
		case deleting:
			found.NodeName = ""
		default: // waiting does not help
			a.s.failedToCreate(passevents.Cause{Name: v1alpha1.CauseNodeNameTaken}, stale, 0)
			return flow.Wait(0, stale)
		}
	}
	if deleting {
		return flow.Fail(a.c.recordNode(ctx, a.s, found, location))
	}
	return flow.Fail(a.c.recordIdentity(ctx, a.s, found, location))
}

// Locate implements steps.Adapter.
func (a adapter) Locate(ctx context.Context, location string) flow.Result {
	return flow.Fail(a.c.patchMachine(ctx, a.s, func(machine *v1alpha1.Machine) { setLocation(machine, location) }))
}

func setLocation(machine *v1alpha1.Machine, location string) {
	if location != "" {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, driver.AnnotationLocation, location)
	}
}

// Location returns where the instances of a class were created last; empty if this process does not
// know. A new Machine that has it in driver.AnnotationLocation needs no write before its creation.
func (c *Controller) Location(ctx context.Context, machine *v1alpha1.Machine) string {
	inputs, missing, err := c.inputs().OfMachine(ctx, machine)
	if err != nil || missing != "" {
		return ""
	}
	return c.Engine.LocationOf(inputs.Class, inputs.Secret)
}

// Conflict implements steps.Adapter. A Machine that is being deleted and never had the instance is
// deleted without it.
func (a adapter) Conflict(_ context.Context, step steps.Step, providerID string, other ownership.Owner) flow.Result {
	switch step {
	case steps.Ensure:
		message := ownedMessage(providerID, other)
		a.s.failedToCreate(passevents.Cause{Name: v1alpha1.CauseInstanceOwned}, message, 0) // waiting does not help
		return flow.Wait(0, message)
	case steps.AwaitSoleOwner:
		message := fmt.Sprintf("VM %s "+messages.AlsoThatOf+" %s: clear spec.providerID of the one that it does not belong to.", providerID, named(other))
		a.s.deletionImpossible(reasonFailedDelete, passevents.Cause{Name: v1alpha1.CauseInstanceShared}, message, identifying)
		return flow.Wait(time.Minute, message)
	default:
		a.s.ownedByOther = ownedMessage(providerID, other)
		return flow.Continue()
	}
}

// Exists implements steps.Reporter.
func (a adapter) Exists(_ context.Context, result instance.Exists) flow.Result {
	a.s.note(result.LastKnownState)
	if result.Created {
		a.c.sayReturned(a)
	}
	a.s.instanceExists(a.c.Target != nil)
	return flow.Continue()
}

// Lost implements steps.Reporter.
func (a adapter) Lost(context.Context) flow.Result {
	a.s.instanceLost()
	return flow.Wait(0, "the VM is gone")
}

// Gone implements steps.Reporter.
func (a adapter) Gone(_ context.Context, _ steps.Step, result instance.Gone) flow.Result {
	a.s.note(result.LastKnownState)
	return flow.Continue()
}

// Remains implements steps.Reporter.
func (a adapter) Remains(_ context.Context, result instance.Remains) flow.Result {
	a.s.note(result.LastKnownState)
	a.s.instanceRemains(deletingInstance)
	return flow.Wait(result.Retry, "the VM to be gone")
}

// Failed implements steps.Reporter.
func (a adapter) Failed(ctx context.Context, step steps.Step, result instance.Failed) flow.Result {
	a.s.note(result.LastKnownState)
	if step == steps.Ensure {
		if result, falls := a.c.fallBack(ctx, a, &result); falls {
			return result
		}
		return a.c.creationFailed(ctx, a.s, result)
	}
	// MCM sets no code on deletions, and neither do we.
	message := fmt.Sprintf("%s%v.", messages.Provider, result.Failure.Err)
	a.s.deletionImpossible(reasonFailedDelete, passevents.OfDriver(result.Failure), message, deletionStepOf(step))
	return flow.Wait(result.Retry, result.Failure.Error())
}

// Await implements steps.Reporter.
func (a adapter) Await(ctx context.Context, step steps.Step, result instance.Pending) flow.Result {
	if step == steps.Ensure {
		return a.c.awaitDriver(ctx, a.s, result)
	}
	return a.s.awaitDeletion(result, deletionStepOf(step))
}

func deletionStepOf(step steps.Step) deletionStep {
	if step == steps.Identify {
		return identifying
	}
	return deletingInstance
}

func (c *Controller) creationFailed(ctx context.Context, s *scope, result instance.Failed) flow.Result {
	left, failure := c.creationTimeLeft(ctx, s), result.Failure
	if result.LastKnownState == nil {
		s.forgetState(failure)
	}
	method := failure.Method
	nameTaken := failure.Code == codes.AlreadyExists && (method == instance.MethodCreate || method == instance.MethodInitialize)
	if nameTaken && metav1.GetControllerOfNoCopy(s.machine) != nil {
		left = outage.Countdown{} // the set's next machine has another name
	}
	if failure.Elsewhere() && s.machine.Spec.ProviderID != "" {
		left.Left = max(left.Left, 1) // its VM may run, where only a user can lead the driver
	}
	s.driverFailed(failure, left.Left)
	if s.machine.Spec.ProviderID != "" && c.Tokens != nil {
		if err := c.keepToken(ctx, s); err != nil {
			return flow.Fail(err)
		}
	}
	wait := result.Retry
	if !left.Over() {
		wait = min(wait, left.Wait)
	}
	return flow.Wait(wait, failure.Error())
}

// awaitDriver waits for the driver within the creation timeout: one that never answers must not
// hold up a set.
func (c *Controller) awaitDriver(ctx context.Context, s *scope, pending instance.Pending) flow.Result {
	left := c.creationTimeLeft(ctx, s)
	if !left.Over() {
		return flow.Wait(left.Wait, "the driver")
	}
	silent := passevents.Cause{Name: v1alpha1.CauseDriverSilent}
	switch s.machine.Status.CurrentStatus.Phase {
	case "":
		s.failedToCreate(silent, fmt.Sprintf(messages.NoAnswer+" within %s", messages.Duration(timeouts.Creation(s.machine, c.CreationTimeout).Duration)), left.Left)
	case v1alpha1.MachineCrashLoopBackOff: // it has answered before
		if wait := pending.SilentIn(c.Clock.Now()); wait > 0 {
			return flow.Wait(wait, "the driver")
		}
		s.failedToCreate(silent, noAnswer, left.Left)
	}
	return flow.Wait(0, "the driver")
}

// identifyInstance finds the VM of a Machine that names none, if there is another API group: the
// driver might delete a VM of that group for its name.
func (c *Controller) identifyInstance(ctx context.Context, s *scope) flow.Result {
	if c.OtherOwners == nil || s.machine.Spec.ProviderID != "" || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	return c.identify(ctx, s)
}

func (c *Controller) identify(ctx context.Context, s *scope) flow.Result {
	inputs, _, err := c.inputs().OfMachine(ctx, s.machine)
	if err != nil || inputs.Class == nil {
		return flow.Fail(err)
	}
	return c.instances().Identify(ctx, adapter{c: c, s: s, inputs: inputs})
}

func (c *Controller) deleteInstance(ctx context.Context, s *scope) flow.Result {
	if s.ownedByOther != "" {
		return flow.Continue()
	}
	inputs, missing, err := c.inputs().OfMachine(ctx, s.machine)
	switch {
	case err != nil:
		return flow.Fail(err)
	case inputs.Awaited: // the driver may know a VM that the Machine does not name
		s.deletionImpossible(reasonFailedDelete, passevents.Cause{Name: v1alpha1.CauseInvalidClassInputs}, missing+".", deletingInstance)
		return flow.Wait(migrationCheck, missing)
	case inputs.Class == nil:
		return c.deletionWithoutClass(ctx, s, missing)
	}
	return c.instances().Delete(ctx, adapter{c: c, s: s, inputs: inputs})
}

// awaitDeletion waits for the driver, and reports if it is silent. The call may be the creation, which has
// to return first.
func (s *scope) awaitDeletion(pending instance.Pending, step deletionStep) flow.Result {
	wait := pending.SilentIn(s.now)
	if wait <= 0 {
		s.deletionImpossible(reasonFailedDelete, passevents.Cause{Name: v1alpha1.CauseDriverSilent}, noAnswer+".", step)
	}
	return flow.Wait(max(wait, 0), "the driver")
}

// deletionWithoutClass deletes a Machine whose class is gone. As our finalizer holds a class that is
// in use, a Machine without a provider ID has no instance, unless a user removed the finalizer, or
// gave the class to another driver, during a creation: that call is awaited.
func (c *Controller) deletionWithoutClass(ctx context.Context, s *scope, missing string) flow.Result {
	if s.machine.Spec.ProviderID == "" {
		result := c.Engine.Abandon(s.key())
		if pending, ok := result.(instance.Pending); ok {
			return s.awaitDeletion(pending, deletingInstance)
		}
		exists, ok := result.(instance.Exists)
		if !ok {
			return flow.Continue()
		}
		other, err := c.instances().Owners.Conflicting(ctx, owner(s.machine), exists.Instance.ProviderID)
		if err != nil || other != nil {
			return flow.Fail(err)
		}
		if result := (adapter{c: c, s: s}).Record(ctx, exists.Instance, exists.Location); result.Ends() {
			return result
		}
	}
	message := fmt.Sprintf("VM %s cannot be deleted: %s.", s.machine.Spec.ProviderID, missing)
	s.deletionImpossible(reasonFailedDelete, passevents.Cause{Name: v1alpha1.CauseInvalidClassInputs}, message, deletingInstance)
	return flow.Wait(0, message)
}

// prepare returns what makes the Secret of a creation, whose user data has the bootstrap token.
func (c *Controller) prepare(machine *v1alpha1.Machine, secret *corev1.Secret) func(context.Context) (*corev1.Secret, error) {
	key := types.NamespacedName{Namespace: machine.Namespace, Name: machine.Name}
	valid := timeouts.Creation(machine, c.CreationTimeout).Duration
	return func(ctx context.Context) (*corev1.Secret, error) {
		token := ""
		if c.Tokens != nil {
			var err error
			if token, err = c.Tokens.Issue(ctx, key, valid); err != nil {
				return nil, err
			}
		}
		prepared := secret.DeepCopy()
		prepared.Data[bootstrap.UserDataKey] = userdata.Render(secret.Data[bootstrap.UserDataKey], key.Name, token)
		return prepared, nil
	}
}

// migrationCheck is the time after which a Machine looks at the migration of its class again. Its end
// comes with an event.
const migrationCheck = 5 * time.Second
