package crash

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/test/support/env"
)

const (
	// pool is the name of the MachineClass, of its Secret, and of what is created from it.
	pool = "pool"
	// simDriver is the provider name in classes.
	simDriver = "sim"
	// userDataSecret is a value that must not appear outside Secrets.
	userDataSecret = "what-only-the-guest-may-know"
)

// create creates objects in the control cluster. Their names are not replaced in points.
func (r *run) create(ctx context.Context, objects ...client.Object) error {
	return r.createIn(ctx, r.control, objects...)
}

func (r *run) createIn(ctx context.Context, cluster *env.Cluster, objects ...client.Object) error {
	for _, object := range objects {
		r.gate.names.keep(object.GetName())
		object.SetNamespace(cluster.Namespace)
		if err := cluster.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T: %w", object, err)
		}
	}
	return nil
}

// declareClass creates the MachineClass, and the Secret that it refers to.
func declareClass(ctx context.Context, r *run) error {
	return r.create(ctx, r.classSecret(),
		&v1alpha1.MachineClass{
			ObjectMeta:   metav1.ObjectMeta{Name: pool},
			Provider:     simDriver,
			ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
			SecretRef:    &corev1.SecretReference{Namespace: r.control.Namespace, Name: pool},
		})
}

// classSecret is the Secret that the MachineClass refers to.
func (r *run) classSecret() *corev1.Secret {
	r.leaks.secret([]byte(userDataSecret))
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: pool},
		Data:       map[string][]byte{"userData": []byte(userDataSecret + " <<BOOTSTRAP_TOKEN>>")},
	}
}

// template is the template of all Machines.
func (scenario) template() v1alpha1.MachineSpec {
	return v1alpha1.MachineSpec{
		Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: pool},
		NodeTemplateSpec: v1alpha1.NodeTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": pool}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "dedicated", Value: pool, Effect: corev1.TaintEffectNoSchedule}}},
		},
	}
}

// deploymentOption changes a MachineDeployment before it is created.
type deploymentOption func(*v1alpha1.MachineDeployment)

// declareDeployment creates a MachineDeployment with that many Machines.
func (r *run) declareDeployment(ctx context.Context, replicas int32, options ...deploymentOption) error {
	deployment := &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Name: pool},
		Spec: v1alpha1.MachineDeploymentSpec{
			Replicas: replicas,
			Selector: &metav1.LabelSelector{MatchLabels: poolLabels()},
			Template: r.scenario.machineTemplate(),
		},
	}
	for _, option := range options {
		option(deployment)
	}
	return r.create(ctx, deployment)
}

func poolLabels() map[string]string { return map[string]string{"name": pool} }

func (s scenario) machineTemplate() v1alpha1.MachineTemplateSpec {
	return v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: poolLabels()}, Spec: s.template()}
}

// patchDeployment patches the MachineDeployment with a single write.
func (r *run) patchDeployment(ctx context.Context, patch string) error {
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: r.poolMeta()}
	return r.control.Client.Patch(ctx, deployment, client.RawPatch(types.MergePatchType, []byte(patch)))
}

func (r *run) poolMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: r.control.Namespace, Name: pool}
}

// scale changes the number of Machines.
func (r *run) scale(ctx context.Context, replicas int32) error {
	return r.patchDeployment(ctx, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

// refresh makes a change that must reach every Machine and its node, which shows that the manager has reconciled
// all of them. A MillwrightMachine gets an update of its node.
func (r *run) refresh(ctx context.Context) error {
	const template = `{"nodeTemplate":{"metadata":{"labels":{"` + refreshLabel + `":"yes"}}}}`
	const ofMany = `{"spec":{"template":{"spec":` + template + `}}}`
	alone := metav1.ObjectMeta{Namespace: r.control.Namespace, Name: standalone}
	for object, patch := range map[client.Object]string{
		&v1alpha1.MachineDeployment{ObjectMeta: r.poolMeta()}: ofMany,
		&v1alpha1.MachineSet{ObjectMeta: r.poolMeta()}:        ofMany,
		&v1alpha1.Machine{ObjectMeta: alone}:                  `{"spec":` + template + `}`,
		&core.Machine{ObjectMeta: alone}:                      `{"status":{"nodeRef":{"name":"` + standalone + `"}}}`,
	} {
		err := r.control.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(patch)))
		if client.IgnoreNotFound(err) != nil { // the scenario has others
			return err
		}
	}
	return nil
}

const refreshLabel = "refreshed"

// removeAll deletes everything that was declared. Machines are deleted first, because a Machine without its class
// can hardly be deleted. Those of a MachineDeployment are deleted with it.
func removeAll(ctx context.Context, r *run) error {
	if err := removeMachines(ctx, r); err != nil {
		return err
	}
	if err := r.awaitRest(ctx, "no Machine is left", noMachine); err != nil {
		return err
	}
	for _, kind := range []client.Object{&v1alpha1.MachineClass{}, &legacy.AWSMachineClass{}, &corev1.Secret{}, &core.Machine{}, &core.Cluster{}} {
		if err := r.control.Client.DeleteAllOf(ctx, kind, client.InNamespace(r.control.Namespace)); err != nil {
			return err
		}
	}
	return nil
}

// removeMachines requests the deletion of all declared Machines.
func removeMachines(ctx context.Context, r *run) error {
	namespace := r.control.Namespace
	for _, declared := range []client.Object{
		&v1alpha1.MachineDeployment{ObjectMeta: r.poolMeta()},
		&v1alpha1.MachineSet{ObjectMeta: r.poolMeta()},
		&v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: standalone}},
		&infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: standalone}},
	} {
		if err := r.control.Client.Delete(ctx, declared); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	r.removing.Store(true)
	return nil
}

// removalAsked waits until the deletion of all Machines was requested.
func removalAsked(ctx context.Context, r *run) error {
	return r.await(ctx, "that deletion was asked for", func(context.Context, *run) error {
		if !r.removing.Load() {
			return errors.New("it was not")
		}
		return nil
	})
}

// clear forcibly deletes what a failed run has left and what would affect other runs.
func (r *run) clear(ctx context.Context) error {
	return client.IgnoreNotFound(r.eachNode(ctx, func(node *corev1.Node) error {
		node.Finalizers = nil
		if err := r.target.Client.Update(ctx, node); err != nil {
			return client.IgnoreNotFound(err)
		}
		return client.IgnoreNotFound(r.target.Client.Delete(ctx, node))
	}))
}

func (r *run) eachNode(ctx context.Context, do func(*corev1.Node) error) error {
	if r.target == nil {
		return nil
	}
	nodes := &corev1.NodeList{}
	if err := r.target.Client.List(ctx, nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		if err := do(&nodes.Items[i]); err != nil {
			return err
		}
	}
	return nil
}
