package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/test/support/coretest"
	"github.com/millwright-dev/millwright/test/support/env"
)

// clusterAPI contains the scenarios of a MillwrightMachine. The core of Cluster API is not installed: the
// scenario performs its operations one after another. This API does not manage nodes, so the VMs join no cluster.
var clusterAPI = []scenario{
	{
		name: "capi create", clusterAPI: true, where: noTarget,
		given:  declareClass,
		act:    declareInfrastructure,
		want:   provisioned,
		always: orderly,
	},
	{
		name: "capi delete", clusterAPI: true, where: noTarget,
		given:  givenInfrastructure,
		act:    removeAll,
		want:   nothing,
		always: orderly,
	},
	{
		name: "capi delete amid creation", clusterAPI: true, where: noTarget,
		given:  declareClass,
		act:    deleteAmid(declareInfrastructure),
		want:   nothing,
		always: orderly,
	},
	{
		name: "capi update in place", clusterAPI: true, where: noTarget,
		given:  givenTwoClasses,
		act:    capiUpdate,
		want:   capiUpdated,
		always: orderly,
	},
	{
		name: "capi delete amid an update in place", clusterAPI: true, where: noTarget,
		given:  givenTwoClasses,
		act:    inTurn(capiUpdate, removeAll),
		want:   nothing,
		always: orderly,
	},
}

// otherClass is the name of a class with other tags.
const otherClass = "other"

// givenTwoClasses creates a provisioned MillwrightMachine, and another class whose VMs are in the same pool.
func givenTwoClasses(ctx context.Context, r *run) error {
	spec := func(tags string) runtime.RawExtension {
		return runtime.RawExtension{Raw: []byte(`{"pool":"` + pool + `","tags":` + tags + `}`)}
	}
	for name, spec := range map[string]runtime.RawExtension{pool: spec(`{}`), otherClass: spec(`{"team":"blue"}`)} {
		if err := r.create(ctx, &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provider: simDriver, ProviderSpec: spec}); err != nil {
			return err
		}
	}
	if err := declareInfrastructure(ctx, r); err != nil {
		return err
	}
	return r.await(ctx, "what is given", provisioned)
}

// capiUpdate switches the MillwrightMachine to the other class with one request, as the core does.
func capiUpdate(ctx context.Context, r *run) error {
	infra := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Namespace: r.control.Namespace, Name: standalone}}
	return r.merge(ctx, infra, fmt.Sprintf(
		`{"metadata":{"annotations":{%q:""}},"spec":{"machineClassRef":{"name":%q}}}`, core.AnnotationUpdateInProgress, otherClass))
}

// capiUpdated checks that there is one VM, that it matches the other class, and that Cluster API is informed of
// that.
func capiUpdated(ctx context.Context, r *run) error {
	infra := &infrav1.MillwrightMachine{}
	if err := r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: standalone}, infra); err != nil {
		return err
	}
	if err := r.backed(infra); err != nil {
		return err
	}
	messages := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionUpToDate)
	if messages == nil || messages.Status != metav1.ConditionTrue || messages.ObservedGeneration != infra.Generation {
		return fmt.Errorf("it is not up to date: %v", messages)
	}
	vms, err := r.cloud.VMs()
	if err != nil {
		return err
	}
	for _, vm := range vms {
		if vm.Tags["team"] != "blue" {
			return fmt.Errorf("VM %s has the tags %v", vm.ProviderID, vm.Tags)
		}
	}
	return r.hasNoOrphans(ctx, 1)
}

// scheme contains the kinds of both APIs, and the legacy ones.
var scheme = newScheme()

func newScheme() *runtime.Scheme {
	scheme := env.NewScheme()
	core.AddToScheme(scheme, core.V1Beta2)
	if err := errors.Join(infrav1.AddToScheme(scheme), legacy.AddToScheme(scheme)); err != nil {
		panic(err) // a duplicate kind is a mistake in this list
	}
	return scheme
}

// withAllKinds makes a cluster serve the core's kinds and a legacy kind, and its client know them and ours.
func withAllKinds(t *testing.T, c *env.Cluster) *env.Cluster {
	t.Helper()
	coretest.Install(t, c.Admin)
	installLegacyClass(t, c)
	var err error
	if c.Client, err = client.New(c.Admin, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	clusterName = "cluster"
	// bootstrapSecret is the name of a Secret, and bootstrapData a value that must not appear outside it.
	bootstrapSecret = "bootstrap"
	bootstrapData   = "what-only-this-machine-may-know"
)

// declareInfrastructure creates a MillwrightMachine, and the objects that it waits for as late as the core may
// create them.
func declareInfrastructure(ctx context.Context, r *run) error {
	cluster := &core.Cluster{ObjectMeta: metav1.ObjectMeta{Name: clusterName}}
	machine := &core.Machine{ObjectMeta: metav1.ObjectMeta{Name: standalone, Labels: clusterLabels()}}
	machine.Spec.ClusterName = clusterName
	machine.Spec.InfrastructureRef = core.Reference{APIGroup: infrav1.GroupName, Kind: infrav1.MillwrightMachineKind, Name: standalone}
	if err := r.create(ctx, cluster, machine); err != nil {
		return err
	}
	err := r.create(ctx, &infrav1.MillwrightMachine{
		ObjectMeta: metav1.ObjectMeta{Name: standalone, Labels: clusterLabels(), OwnerReferences: []metav1.OwnerReference{
			{APIVersion: core.V1Beta2.String(), Kind: core.MachineKind, Name: machine.Name, UID: machine.UID},
		}},
		Spec: infrav1.MillwrightMachineSpec{Driver: simDriver, MachineClassRef: &infrav1.LocalReference{Name: pool}},
	})
	if err != nil {
		return err
	}
	if err := r.awaitReason(ctx, infrav1.ReasonWaitingForClusterInfrastructure); err != nil {
		return err
	}
	return r.furnish(ctx, cluster, machine)
}

// furnish provides what a MillwrightMachine waits for.
func (r *run) furnish(ctx context.Context, cluster *core.Cluster, machine *core.Machine) error {
	if err := r.merge(ctx, cluster, `{"status":{"initialization":{"infrastructureProvisioned":true}}}`); err != nil {
		return err
	}
	if err := r.awaitReason(ctx, infrav1.ReasonWaitingForBootstrapData); err != nil {
		return err
	}
	r.leaks.secret([]byte(bootstrapData))
	err := r.create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bootstrapSecret, Labels: clusterLabels()},
		Data:       map[string][]byte{core.BootstrapData: []byte(bootstrapData)},
	})
	if err != nil {
		return err
	}
	return r.merge(ctx, machine, fmt.Sprintf(`{"spec":{"bootstrap":{"dataSecretName":%q}}}`, bootstrapSecret))
}

func clusterLabels() map[string]string { return map[string]string{core.LabelCluster: clusterName} }

func (r *run) merge(ctx context.Context, object client.Object, patch string) error {
	return r.control.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// awaitReason waits until the MillwrightMachine reports why it is not ready.
func (r *run) awaitReason(ctx context.Context, reason string) error {
	return r.await(ctx, reason, func(ctx context.Context, r *run) error {
		infra := &infrav1.MillwrightMachine{}
		if err := r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: standalone}, infra); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionReady); ready == nil || ready.Reason != reason {
			return fmt.Errorf("the condition is %v", ready)
		}
		return nil
	})
}

// choosy creates VMs only from a Machine's own bootstrap data, and not from those of a class.
type choosy struct{ simulated }

// CreateMachine implements driver.Driver.
func (c choosy) CreateMachine(ctx context.Context, q *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	if string(q.Secret.Data["userData"]) != bootstrapData {
		return nil, status.Error(codes.InvalidArgument, "this is not the machine's bootstrap data")
	}
	return c.simulated.CreateMachine(ctx, q)
}

// givenInfrastructure creates a provisioned MillwrightMachine.
func givenInfrastructure(ctx context.Context, r *run) error {
	if err := declareClass(ctx, r); err != nil {
		return err
	}
	if err := declareInfrastructure(ctx, r); err != nil {
		return err
	}
	return r.await(ctx, "what is given", provisioned)
}

// provisioned checks that there is exactly one MillwrightMachine with its own VM, that both contracts report
// that, and that the class has a finalizer.
func provisioned(ctx context.Context, r *run) error {
	list := &infrav1.MillwrightMachineList{}
	if err := r.list(ctx, list); err != nil {
		return err
	}
	if len(list.Items) != 1 {
		return fmt.Errorf("there are %d MillwrightMachines, not one", len(list.Items))
	}
	if err := r.backed(&list.Items[0]); err != nil {
		return err
	}
	class := &v1alpha1.MachineClass{}
	if err := r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: pool}, class); err != nil {
		return err
	}
	if !controllerutil.ContainsFinalizer(class, infrav1.ClassFinalizer) {
		return errors.New("the class may be deleted")
	}
	return r.hasNoOrphans(ctx, 1)
}

// backed checks one MillwrightMachine and its VM.
func (r *run) backed(infra *infrav1.MillwrightMachine) error {
	messages := &infra.Status
	if !messages.Ready || messages.Initialization == nil || !ptr.Deref(messages.Initialization.Provisioned, false) ||
		!meta.IsStatusConditionTrue(messages.Conditions, infrav1.ConditionReady) {
		return fmt.Errorf("it is not ready: %v", messages.Conditions)
	}
	vms, err := r.cloud.VMs()
	if err != nil {
		return err
	}
	own := slices.IndexFunc(vms, func(vm simVM) bool { return vm.ProviderID == infra.Spec.ProviderID })
	if own < 0 || vms[own].Machine != infra.Name || vms[own].APIGroup != driver.APIGroupClusterAPI || messages.ProviderID != infra.Spec.ProviderID {
		return fmt.Errorf("it has no VM of its own: provider ID %q, and %q in the status", infra.Spec.ProviderID, messages.ProviderID)
	}
	return nil
}

// heardOfNodes checks that every MillwrightMachine knows its node.
func (r *run) heardOfNodes(ctx context.Context) error {
	list := &infrav1.MillwrightMachineList{}
	if err := r.list(ctx, list); err != nil {
		return err
	}
	for _, infra := range list.Items {
		if !meta.IsStatusConditionTrue(infra.Status.Conditions, infrav1.ConditionNodeJoined) {
			return fmt.Errorf("%s has not heard of its node: %v", infra.Name, infra.Status.Conditions)
		}
	}
	return nil
}

// orderly contains the rules that a MillwrightMachine obeys at any time.
var orderly = both(heldBeforeVM, both(idBeforeReady, notTakenBack))

// heldBeforeVM requires a finalizer as long as a VM may exist.
func heldBeforeVM(_ *run, _, is moment) error {
	for name, infra := range is.infrastructure {
		_, begun := infra.Annotations[infrav1.AnnotationCreationBegun]
		mayHaveVM := begun || infra.Spec.ProviderID != "" || infra.Status.Ready
		if mayHaveVM && !controllerutil.ContainsFinalizer(infra, infrav1.Finalizer) {
			return fmt.Errorf("%w: %s", errUnheld, name)
		}
	}
	return nil
}

// idBeforeReady requires that the provider ID of a VM is set no later than its readiness.
func idBeforeReady(_ *run, _, is moment) error {
	for name, infra := range is.infrastructure {
		if id := infra.Spec.ProviderID; infra.Status.Ready && (id == "" || id != infra.Status.ProviderID) {
			return fmt.Errorf("%w: %s has the ID %q, and %q in the status", errNoID, name, id, infra.Status.ProviderID)
		}
	}
	return nil
}

// notTakenBack requires that neither the provider ID nor the readiness is ever reverted.
func notTakenBack(_ *run, was, is moment) error {
	for name, before := range was.infrastructure {
		infra := is.infrastructure[name]
		if infra == nil {
			continue
		}
		if id := before.Spec.ProviderID; id != "" && infra.Spec.ProviderID != id {
			return fmt.Errorf("%w: %s had the ID %q, and has %q", errTakenBack, name, id, infra.Spec.ProviderID)
		}
		if before.Status.Ready && !infra.Status.Ready {
			return fmt.Errorf("%w: %s was ready", errTakenBack, name)
		}
	}
	return nil
}
