package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/inputs"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
)

// refusal is why something cannot be updated in place, so that Cluster API replaces it.
type refusal struct{ why string }

// Error implements error.
func (r *refusal) Error() string { return r.why }

func refuse(format string, args ...any) error { return &refusal{text(fmt.Sprintf(format, args...))} }

// wanted is what a VM is to become.
type wanted struct {
	spec infrav1.MillwrightMachineSpec
	// template that the spec comes from; empty if that is not known.
	template string
}

// canUpdateMachineSet answers with a patch of the whole template if its driver can update the VMs of all
// machines.
func (h *Handler) canUpdateMachineSet(ctx context.Context, request canUpdateMachineSet) (canUpdateMachineSetAnswer, error) {
	answer := canUpdateMachineSetAnswer{outcome: outcome{meta: meta{apiVersion, "CanUpdateMachineSetResponse"}, Status: succeeded}}
	err := h.askAll(ctx, request)
	if why := (*refusal)(nil); errors.As(err, &why) {
		set := request.Current.MachineSet.Metadata
		h.Log.Info("A MachineSet is not updated in place", "machineSet", klog.KRef(set.Namespace, set.Name), "reason", why.why)
		answer.Message = why.why
		return answer, nil
	}
	if err != nil {
		return answer, err
	}
	answer.Patch, err = replacing("/spec/template/spec", request.Desired.InfrastructureMachineTemplate, "spec", "template", "spec")
	return answer, err
}

func (h *Handler) askAll(ctx context.Context, request canUpdateMachineSet) error {
	set := request.Current.MachineSet.Metadata
	const kind = infrav1.MillwrightMachineTemplateKind
	current, desired := &infrav1.MillwrightMachineTemplate{}, &infrav1.MillwrightMachineTemplate{}
	if err := h.read(ctx, set.Namespace, request.Current.InfrastructureMachineTemplate, kind, current); err != nil {
		return err
	}
	if err := h.read(ctx, set.Namespace, request.Desired.InfrastructureMachineTemplate, kind, desired); err != nil {
		return err
	}
	if err := h.comparable(current.Spec.Template.Spec, desired.Spec.Template.Spec); err != nil {
		return err
	}
	machines, err := h.machinesOf(ctx, set.Namespace, set.Name)
	if err != nil {
		return err
	}
	return h.ask(ctx, machines, wanted{desired.Spec.Template.Spec, desired.Name})
}

// canUpdateMachine answers with a patch of the whole spec if its driver can update the VM.
func (h *Handler) canUpdateMachine(ctx context.Context, request canUpdateMachine) (canUpdateMachineAnswer, error) {
	answer := canUpdateMachineAnswer{outcome: outcome{meta: meta{apiVersion, "CanUpdateMachineResponse"}, Status: succeeded}}
	err := h.askOne(ctx, request)
	if why := (*refusal)(nil); errors.As(err, &why) {
		h.Log.Info("A Machine is not updated in place", "machine", klog.KObj(&request.Current.Machine), "reason", why.why)
		answer.Message = why.why
		return answer, nil
	}
	if err != nil {
		return answer, err
	}
	answer.Patch, err = replacing("/spec", request.Desired.InfrastructureMachine, "spec")
	return answer, err
}

// askOne takes from the request no more than the name of the template that the machine is to be like.
func (h *Handler) askOne(ctx context.Context, request canUpdateMachine) error {
	current := &infrav1.MillwrightMachine{}
	if err := h.read(ctx, request.Current.Machine.Namespace, request.Current.InfrastructureMachine, infrav1.MillwrightMachineKind, current); err != nil {
		return err
	}
	desired := &infrav1.MillwrightMachine{}
	if err := json.Unmarshal(request.Desired.InfrastructureMachine.Raw, desired); err != nil {
		return fmt.Errorf("reading the desired MillwrightMachine: %w", err)
	}
	template := &infrav1.MillwrightMachineTemplate{}
	key := types.NamespacedName{Namespace: current.Namespace, Name: desired.Annotations[core.AnnotationClonedFrom]}
	if err := h.Client.Get(ctx, key, template); err != nil {
		return fmt.Errorf("reading MillwrightMachineTemplate %q: %w", key.Name, err)
	}
	if err := h.comparable(current.Spec, template.Spec.Template.Spec); err != nil {
		return err
	}
	return h.ask(ctx, []*infrav1.MillwrightMachine{current}, wanted{template.Spec.Template.Spec, template.Name})
}

// read reads the object of that name, if what a request sends is of the kind. It is refused if not.
func (h *Handler) read(ctx context.Context, namespace string, sent runtime.RawExtension, kind string, into client.Object) error {
	var head struct {
		meta  `json:",inline"`
		named `json:",inline"`
	}
	if err := json.Unmarshal(sent.Raw, &head); err != nil {
		return fmt.Errorf("reading a %s: %w", kind, err)
	}
	if group, _, _ := strings.Cut(head.APIVersion, "/"); group != infrav1.GroupName || head.Kind != kind {
		return refuse("%s of %s is not a %s", head.Kind, head.APIVersion, kind)
	}
	key := types.NamespacedName{Namespace: namespace, Name: head.Metadata.Name}
	if err := h.Client.Get(ctx, key, into); err != nil {
		return fmt.Errorf("reading %s %s: %w", kind, key.Name, err)
	}
	return nil
}

// comparable refuses differences in what no driver can change. A driver that is not registered is an error: it
// may be again, and nothing is to be replaced only because it was not asked.
func (h *Handler) comparable(current, desired infrav1.MillwrightMachineSpec) error {
	switch {
	case current.Driver != desired.Driver:
		return refuse("the driver changes from %q to %q", current.Driver, desired.Driver)
	case !equality.Semantic.DeepEqual(current.CredentialsSecretRef, desired.CredentialsSecretRef):
		return refuse("credentialsSecretRef changes")
	case !equality.Semantic.DeepEqual(current.FailureDomains, desired.FailureDomains):
		return refuse("failureDomains change")
	case !h.Drivers.Has(current.Driver):
		return fmt.Errorf("the driver %q is not registered: this manager has %s", current.Driver, h.Drivers)
	}
	return nil
}

// machinesOf returns the MillwrightMachines of a MachineSet.
func (h *Handler) machinesOf(ctx context.Context, namespace, set string) ([]*infrav1.MillwrightMachine, error) {
	list := &core.MachineList{}
	if err := h.Client.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Machines: %w", err)
	}
	var machines []*infrav1.MillwrightMachine
	for i := range list.Items {
		ref := list.Items[i].Spec.InfrastructureRef
		if core.Owner(&list.Items[i], core.MachineSetKind) != set || !ref.Is(infrav1.Kind(infrav1.MillwrightMachineKind)) {
			continue
		}
		machine := &infrav1.MillwrightMachine{}
		err := h.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, machine)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading MillwrightMachine %s: %w", ref.Name, err)
		}
		if err == nil {
			machines = append(machines, machine)
		}
	}
	return machines, nil
}

// mostAtATime is how many VMs a driver is asked about at a time for one request.
const mostAtATime = 8

// ask has the driver say what an update of each VM would need. It is refused if one needs a replacement.
func (h *Handler) ask(ctx context.Context, machines []*infrav1.MillwrightMachine, to wanted) error {
	select {
	case h.asking <- struct{}{}:
		defer func() { <-h.asking }()
	default:
		return errBusy
	}
	from := inputs.Reader{Cache: h.Client, Live: readOnce(h.Live), Placer: h.Drivers}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(mostAtATime)
	for _, machine := range machines {
		if machine.DeletionTimestamp.IsZero() && marks.Established(machine) { // others are made as they are wanted, or go
			group.Go(func() error { return h.compare(ctx, from, machine, to) })
		}
	}
	return group.Wait()
}

// compare has the driver compare one VM with what it is to become, by what is read from there.
func (h *Handler) compare(ctx context.Context, from inputs.Reader, machine *infrav1.MillwrightMachine, to wanted) error {
	read, err := from.Read(ctx, become(machine, to))
	if missing := (*inputs.Error)(nil); errors.As(err, &missing) {
		return fmt.Errorf("MillwrightMachine %s: %s", machine.Name, missing.Message)
	}
	if err != nil {
		return err
	}
	answer, err := h.Drivers.UpdateMachine(ctx, &driver.UpdateMachineRequest{
		Machine: read.Machine, MachineClass: read.Class, Secret: read.Secret, DryRun: true,
		MadeFrom: liveupdate.Read(machine.Annotations).Spec(),
	})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return refuse("the driver %q cannot change VMs that exist", machine.Spec.Driver)
	case err != nil:
		return fmt.Errorf("the driver was asked about VM %s: %w", machine.Spec.ProviderID, err)
	case len(answer.Replacements) > 0:
		return refuse("VM %s needs a replacement: %.1024s", machine.Spec.ProviderID, strings.Join(answer.Replacements, "; "))
	}
	return nil
}

// become returns a machine as Cluster API will have changed it.
func become(machine *infrav1.MillwrightMachine, to wanted) *infrav1.MillwrightMachine {
	after := machine.DeepCopy()
	after.Spec = *to.spec.DeepCopy()
	after.Spec.ProviderID, after.Spec.FailureDomain = machine.Spec.ProviderID, machine.Spec.FailureDomain
	if after.Annotations == nil {
		after.Annotations = map[string]string{}
	}
	after.Annotations[core.AnnotationClonedFrom] = to.template
	return after
}

// replacing returns a patch that makes a part of the current object that of the desired one.
func replacing(path string, desired runtime.RawExtension, fields ...string) (*patch, error) {
	value := json.RawMessage(desired.Raw)
	for _, field := range fields {
		object := map[string]json.RawMessage{}
		if err := json.Unmarshal(value, &object); err != nil {
			return nil, fmt.Errorf("reading the desired object: %w", err)
		}
		value = object[field]
	}
	text, err := json.Marshal([]any{map[string]any{"op": "replace", "path": path, "value": value}})
	return &patch{PatchType: "JSONPatch", Patch: text}, err
}
