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

// refusal is the reason why machines cannot be updated in place. Cluster API then replaces them.
type refusal struct{ reason string }

// Error implements error.
func (r *refusal) Error() string { return r.reason }

func refuse(format string, args ...any) error {
	return &refusal{sanitized(fmt.Sprintf(format, args...))}
}

// target is the desired state of a VM.
type target struct {
	spec infrav1.MillwrightMachineSpec
	// template is the name of the template of the spec; empty if it is unknown.
	template string
}

// canUpdateMachineSet responds with a patch of the whole template if the driver can update the VMs of all machines.
func (h *Handler) canUpdateMachineSet(ctx context.Context, request canUpdateMachineSet) (canUpdateMachineSetResponse, error) {
	response := canUpdateMachineSetResponse{outcome: outcome{meta: meta{apiVersion, "CanUpdateMachineSetResponse"}, Status: succeeded}}
	err := h.checkMachineSet(ctx, request)
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		set := request.Current.MachineSet.Metadata
		h.Log.Info("Cannot update MachineSet in place", "machineSet", klog.KRef(set.Namespace, set.Name), "reason", refused.reason)
		response.Message = refused.reason
		return response, nil
	}
	if err != nil {
		return response, err
	}
	response.Patch, err = replacing("/spec/template/spec", request.Desired.InfrastructureMachineTemplate, "spec", "template", "spec")
	return response, err
}

func (h *Handler) checkMachineSet(ctx context.Context, request canUpdateMachineSet) error {
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
	return h.checkUpdates(ctx, machines, target{desired.Spec.Template.Spec, desired.Name})
}

// canUpdateMachine responds with a patch of the whole spec if the driver can update the VM.
func (h *Handler) canUpdateMachine(ctx context.Context, request canUpdateMachine) (canUpdateMachineResponse, error) {
	response := canUpdateMachineResponse{outcome: outcome{meta: meta{apiVersion, "CanUpdateMachineResponse"}, Status: succeeded}}
	err := h.checkMachine(ctx, request)
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		h.Log.Info("Cannot update Machine in place", "machine", klog.KObj(&request.Current.Machine), "reason", refused.reason)
		response.Message = refused.reason
		return response, nil
	}
	if err != nil {
		return response, err
	}
	response.Patch, err = replacing("/spec", request.Desired.InfrastructureMachine, "spec")
	return response, err
}

// checkMachine uses nothing of the request except for names: those of the objects, and that of the desired template.
func (h *Handler) checkMachine(ctx context.Context, request canUpdateMachine) error {
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
	return h.checkUpdates(ctx, []*infrav1.MillwrightMachine{current}, target{template.Spec.Template.Spec, template.Name})
}

// read reads the object that a request names, if it is of a kind. Otherwise, read returns a refusal.
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

// comparable refuses differences that no driver can apply to an existing VM. If the driver is not registered,
// comparable returns another error: the driver may be registered again later, and machines must not be replaced only
// because it was not called.
func (h *Handler) comparable(current, desired infrav1.MillwrightMachineSpec) error {
	switch {
	case current.Driver != desired.Driver:
		return refuse("the driver changes from %q to %q", current.Driver, desired.Driver)
	case !equality.Semantic.DeepEqual(current.CredentialsSecretRef, desired.CredentialsSecretRef):
		return refuse("credentialsSecretRef changes")
	case !equality.Semantic.DeepEqual(current.FailureDomains, desired.FailureDomains):
		return refuse("failureDomains change")
	case !h.Drivers.Has(current.Driver):
		return fmt.Errorf("driver %q is not registered; this manager has %s", current.Driver, h.Drivers)
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

// maxConcurrentVMs is the number of VMs for which a driver is called at the same time for one request.
const maxConcurrentVMs = 8

// checkUpdates calls the driver to determine what an update of each VM would require. It returns a refusal if a VM
// must be replaced.
func (h *Handler) checkUpdates(ctx context.Context, machines []*infrav1.MillwrightMachine, to target) error {
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		return errBusy
	}
	from := inputs.Reader{Cache: h.Client, Live: newSecretCache(h.Live), Placer: h.Drivers}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentVMs)
	for _, machine := range machines {
		if machine.DeletionTimestamp.IsZero() && marks.Established(machine) { // other VMs are created from the new spec, or are being deleted
			group.Go(func() error { return h.compare(ctx, from, machine, to) })
		}
	}
	return group.Wait()
}

// compare calls the driver to compare one VM with its desired state.
func (h *Handler) compare(ctx context.Context, from inputs.Reader, machine *infrav1.MillwrightMachine, to target) error {
	read, err := from.Read(ctx, updated(machine, to))
	if missing := (*inputs.Error)(nil); errors.As(err, &missing) {
		return fmt.Errorf("MillwrightMachine %s: %s", machine.Name, missing.Message)
	}
	if err != nil {
		return err
	}
	response, err := h.Drivers.UpdateMachine(ctx, &driver.UpdateMachineRequest{
		Machine: read.Machine, MachineClass: read.Class, Secret: read.Secret, DryRun: true,
		MadeFrom: liveupdate.Read(machine.Annotations).Spec(),
	})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return refuse("driver %q does not support updates of existing VMs", machine.Spec.Driver)
	case err != nil:
		return fmt.Errorf("comparing VM %s with its desired spec: %w", machine.Spec.ProviderID, err)
	case len(response.Replacements) > 0:
		return refuse("VM %s must be replaced: %.1024s", machine.Spec.ProviderID, strings.Join(response.Replacements, "; "))
	}
	return nil
}

// updated returns a machine after the change that Cluster API will make.
func updated(machine *infrav1.MillwrightMachine, to target) *infrav1.MillwrightMachine {
	after := machine.DeepCopy()
	after.Spec = *to.spec.DeepCopy()
	after.Spec.ProviderID, after.Spec.FailureDomain = machine.Spec.ProviderID, machine.Spec.FailureDomain
	if after.Annotations == nil {
		after.Annotations = map[string]string{}
	}
	after.Annotations[core.AnnotationClonedFrom] = to.template
	return after
}

// replacing returns a patch that replaces a part of the current object by that of the desired one.
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
