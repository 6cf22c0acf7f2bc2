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
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap/userdata"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance/steps"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// instances creates and deletes the instances of Machines through the engine.
type instances struct {
	*Options
	inputs inputReader
	tokens bootstrapTokens
}

// migrationCheck is the interval at which a Machine checks the migration of its class. The end of the migration
// also triggers a pass.
const migrationCheck = 5 * time.Second

// steps returns the steps that Machines share with the machines of other API groups.
func (i *instances) steps() steps.Steps {
	return steps.Steps{Engine: i.Engine, Owners: ownership.Index{ownership.Machines(i.Client), i.OtherOwners}}
}

// addFinalizer adds our finalizer and the location, in one request.
func (i *instances) addFinalizer(ctx context.Context, s *scope) flow.Result {
	if controllerutil.ContainsFinalizer(s.machine, v1alpha1.FinalizerMCM) && !controllerutil.ContainsFinalizer(s.machine, v1alpha1.FinalizerLegacy) {
		return flow.Continue()
	}
	location := ""
	if driver.Location(s.machine) == "" && s.machine.Spec.ProviderID == "" {
		location = i.location(ctx, s.machine)
	}
	return flow.Fail(s.patch(ctx, func(machine *v1alpha1.Machine) {
		controllerutil.AddFinalizer(machine, v1alpha1.FinalizerMCM)
		controllerutil.RemoveFinalizer(machine, v1alpha1.FinalizerLegacy)
		setLocation(machine, location)
	}))
}

// ensure creates the instance if the Machine never had one.
func (i *instances) ensure(ctx context.Context, s *scope) flow.Result {
	if ownership.Established(s.machine) {
		return flow.Continue()
	}
	if errs := validation.Machine(s.machine); len(errs) > 0 {
		return i.creationImpossible(ctx, s, v1alpha1.CauseInvalidSpec, errs.ToAggregate().Error())
	}
	in, missing, err := i.inputs.ofMachine(ctx, s.machine)
	if err != nil {
		return flow.Fail(err)
	}
	if in.migrating {
		return flow.Wait(migrationCheck, missing)
	}
	if missing == "" {
		missing = in.invalid()
	}
	if missing != "" {
		return i.creationImpossible(ctx, s, v1alpha1.CauseInvalidClassInputs, missing)
	}
	other, err := i.steps().Owners.Conflicting(ctx, asOwner(s.machine), s.machine.Spec.ProviderID)
	switch {
	case err != nil:
		return flow.Fail(err)
	case other != nil:
		return i.creationImpossible(ctx, s, v1alpha1.CauseInstanceOwned, ownedMessage(s.machine.Spec.ProviderID, *other))
	case !controllerutil.ContainsFinalizer(in.class, v1alpha1.FinalizerMCM): // the class is needed to delete the VM
		return flow.Wait(0, "our finalizer on the MachineClass")
	}
	others, err := i.inputs.fallbacks(ctx, s.machine, in.class)
	if err != nil {
		return flow.Fail(err)
	}
	return i.steps().Ensure(ctx, adapter{instances: i, s: s, in: in, fallbacks: others})
}

// adapter implements steps.Adapter for a Machine in one pass.
type adapter struct {
	*instances
	s         *scope
	in        classInputs
	fallbacks fallbacks
}

// Owner implements steps.Adapter.
func (a adapter) Owner() ownership.Owner { return asOwner(a.s.machine) }

// Request implements steps.Adapter.
func (a adapter) Request() instance.Request {
	return instance.Request{
		Machine:      a.s.machine,
		Class:        a.in.class,
		Secret:       a.in.secret,
		Prepare:      a.prepare(a.s.machine, a.in.secret),
		NodeExpected: a.Target != nil,
		Capacity:     a.capacity(),
		Others:       a.fallbacks.versions(),
	}
}

// prepare returns a function that makes the Secret for a creation. Its user data contains the bootstrap token.
func (i *instances) prepare(machine *v1alpha1.Machine, secret *corev1.Secret) func(context.Context) (*corev1.Secret, error) {
	key := types.NamespacedName{Namespace: machine.Namespace, Name: machine.Name}
	validity := timeouts.Creation(machine, i.CreationTimeout).Duration
	return func(ctx context.Context) (*corev1.Secret, error) {
		token := ""
		if i.Tokens != nil {
			var err error
			if token, err = i.Tokens.Issue(ctx, key, validity); err != nil {
				return nil, err
			}
		}
		rendered, err := userdata.Render(secret.Data[bootstrap.UserDataKey], key.Name, token)
		if err != nil {
			return nil, err
		}
		prepared := secret.DeepCopy()
		prepared.Data[bootstrap.UserDataKey] = rendered
		return prepared, nil
	}
}

// Record implements steps.Adapter. If the instance has the node name of another Machine, Record refuses a new
// instance, but records it without the node name if the Machine is being deleted.
func (a adapter) Record(ctx context.Context, found instance.Instance, location string) flow.Result {
	deleting := !a.s.machine.DeletionTimestamp.IsZero()
	if a.Target != nil && a.Target.Ready() && (deleting || a.s.machine.Spec.ProviderID == "") {
		taken, err := nodes.Taken(ctx, a.Target.Client(), a.Client, a.s.machine, found.NodeName, found.ProviderID)
		switch {
		case err != nil:
			return flow.Fail(err)
		case taken == "":
		case deleting:
			found.NodeName = ""
		default: // the problem persists until the instance is replaced
			a.s.failedToCreate(cause{name: v1alpha1.CauseNodeNameTaken}, taken, 0)
			return flow.Wait(0, taken)
		}
	}
	if deleting {
		return flow.Fail(a.s.recordNode(ctx, found, location))
	}
	return flow.Fail(a.recordIdentity(ctx, found, location))
}

func (a adapter) recordIdentity(ctx context.Context, found instance.Instance, location string) error {
	if a.Target == nil {
		a.s.machine.Status.Addresses = mergeAddresses(a.s.machine.Status.Addresses, found)
	}
	return a.s.patch(ctx, func(machine *v1alpha1.Machine) {
		machine.Spec.ProviderID = found.ProviderID
		if a.Target != nil {
			machine.SetNodeName(found.NodeName)
		}
		if machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == "" {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, deletion.Normal)
		}
		if found.FailureDomain != "" {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyFailureDomain, found.FailureDomain)
		}
		setLocation(machine, location)
	})
}

// recordNode stores the node's name, the failure domain and the location unless they are empty. It stores the
// provider ID if the Machine has none.
func (s *scope) recordNode(ctx context.Context, found instance.Instance, location string) error {
	return s.patch(ctx, func(machine *v1alpha1.Machine) {
		if machine.Spec.ProviderID == "" {
			machine.Spec.ProviderID = found.ProviderID
		}
		machine.SetNodeName(found.NodeName)
		if found.FailureDomain != "" {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyFailureDomain, found.FailureDomain)
		}
		setLocation(machine, location)
	})
}

// Locate implements steps.Adapter.
func (a adapter) Locate(ctx context.Context, location string) flow.Result {
	return flow.Fail(a.s.patch(ctx, func(machine *v1alpha1.Machine) { setLocation(machine, location) }))
}

func setLocation(machine *v1alpha1.Machine, location string) {
	if location != "" {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, driver.AnnotationLocation, location)
	}
}

// location implements Controller.Location.
func (i *instances) location(ctx context.Context, machine *v1alpha1.Machine) string {
	in, missing, err := i.inputs.ofMachine(ctx, machine)
	if err != nil || missing != "" {
		return ""
	}
	return i.Engine.LocationOf(in.class, in.secret)
}

// asOwner returns the Machine as an owner. It is never certain, since users can edit the provider ID in the spec.
func asOwner(machine *v1alpha1.Machine) ownership.Owner {
	owner := ownership.OfMachine(machine)
	owner.Certain = false
	return owner
}

func describeOwner(owner ownership.Owner) string {
	if owner.Kind == ownership.KindMachine {
		return fmt.Sprintf("machine %q", owner.Key.Name)
	}
	return owner.String()
}

func ownedMessage(providerID string, other ownership.Owner) string {
	return fmt.Sprintf("VM %s already belongs to %s", providerID, describeOwner(other))
}
