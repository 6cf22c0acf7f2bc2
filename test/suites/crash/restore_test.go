package crash

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
)

// restores contains the scenarios in which the objects of a pool are lost and restored from a backup, while the VMs keep
// running. All objects of a kind are restored before those of the next kind.
var restores = []scenario{
	{
		name:   "restore, in the order of kubectl",
		given:  givenBackup(2),
		act:    restore("MachineDeployment", "MachineSet", "Machine"),
		want:   restored(2),
		always: both(most(2), noneDeleted),
	},
	{
		name:   "restore, in alphabetical order",
		given:  givenBackup(2),
		act:    restore("MachineDeployment", "Machine", "MachineSet"),
		want:   restored(2),
		always: both(most(2), noneDeleted),
	},
}

// backup contains the saved objects by kind, and the VMs by the keys of their Machines in the provider's journal.
type backup struct {
	objects map[string][]client.Object
	vms     map[string][]string
}

// givenBackup creates that many running Machines, backs up all objects, and loses them. The Secret and the MachineClass
// are restored.
func givenBackup(replicas int32) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := givenDeployment(replicas, rolling(1, 0))(ctx, r); err != nil {
			return err
		}
		r.gate.replace()
		if err := r.backUp(ctx); err != nil {
			return fmt.Errorf("backing up: %w", err)
		}
		if err := r.restore(ctx, "Secret"); err != nil {
			return err
		}
		if err := r.restore(ctx, "MachineClass"); err != nil {
			return err
		}
		return r.manage()
	}
}

// backUp saves all objects as docs/backup-and-restore.md describes, and removes them as if their cluster were lost. No
// manager may run.
func (r *run) backUp(ctx context.Context) error {
	r.backup.objects = map[string][]client.Object{}
	for kind, list := range map[string]client.ObjectList{
		"Secret": &corev1.SecretList{}, "MachineClass": &v1alpha1.MachineClassList{}, "MachineDeployment": &v1alpha1.MachineDeploymentList{},
		"MachineSet": &v1alpha1.MachineSetList{}, "Machine": &v1alpha1.MachineList{},
	} {
		if err := r.list(ctx, list); err != nil {
			return err
		}
		objects, err := objectsOf(list)
		if err != nil {
			return err
		}
		for _, object := range objects {
			r.backup.objects[kind] = append(r.backup.objects[kind], saved(object))
			object.SetFinalizers(nil)
			if err := r.control.Client.Update(ctx, object); err != nil {
				return err
			}
			if err := r.control.Client.Delete(ctx, object); err != nil {
				return err
			}
		}
	}
	var err error
	r.backup.vms, err = r.createdVMs()
	return err
}

// saved returns an object without its UID, its version, its owners and its status.
func saved(object client.Object) client.Object {
	object = object.DeepCopyObject().(client.Object)
	object.SetUID("")
	object.SetResourceVersion("")
	object.SetOwnerReferences(nil)
	switch object := object.(type) {
	case *v1alpha1.MachineDeployment:
		object.Status = v1alpha1.MachineDeploymentStatus{}
	case *v1alpha1.MachineSet:
		object.Status = v1alpha1.MachineSetStatus{}
	case *v1alpha1.Machine:
		object.Status = v1alpha1.MachineStatus{}
	}
	return object
}

// restore creates the saved objects of a kind.
func (r *run) restore(ctx context.Context, kind string) error {
	for _, object := range r.backup.objects[kind] {
		err := r.control.Client.Create(ctx, object.DeepCopyObject().(client.Object))
		if apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("%w: a manager created %s %s before it was restored", errTooMany, kind, object.GetName())
		}
		if err != nil {
			return fmt.Errorf("restoring a %s: %w", kind, err)
		}
	}
	return nil
}

// restore restores some kinds, beginning with the MachineDeployment, one after another. Before the next kind, the
// controllers process the existing objects, also those of a manager that was started after a crash.
func restore(kinds ...string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		for i, kind := range kinds {
			if err := r.restore(ctx, kind); err != nil {
				return err
			}
			if err := r.awaitRest(ctx, "that restored objects are processed", processed); err != nil {
				return err
			}
			if !r.gate.reached() || !r.gate.plan.kills() {
				continue
			}
			if err := r.await(ctx, "a second manager", second); err != nil {
				return err
			}
			// The second manager may have nothing to write. Another generation shows that it has seen the objects.
			if err := r.patchDeployment(ctx, fmt.Sprintf(`{"spec":{"revisionHistoryLimit":%d}}`, 10+i)); err != nil {
				return err
			}
			if err := r.awaitRest(ctx, "that they are processed again", processed); err != nil {
				return err
			}
		}
		return nil
	}
}

// processed checks that the controllers have processed all MachineDeployments and MachineSets as they are.
func processed(ctx context.Context, r *run) error {
	deployments, sets := &v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}
	if err := r.list(ctx, deployments); err != nil {
		return err
	}
	if err := r.list(ctx, sets); err != nil {
		return err
	}
	for _, deployment := range deployments.Items {
		if deployment.Status.ObservedGeneration != deployment.Generation {
			return fmt.Errorf("deployment %s is not processed", deployment.Name)
		}
	}
	for _, set := range sets.Items {
		if set.Status.ObservedGeneration != set.Generation {
			return fmt.Errorf("set %s is not processed", set.Name)
		}
	}
	return nil
}

// restored checks that the wait for restored objects is over, and that exactly the Machines of the backup run, with the
// VMs that they had. No other VM may have been created, not even temporarily.
func restored(replicas int) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		vms, err := r.createdVMs()
		if err != nil {
			return err
		}
		if got, want := fmt.Sprint(vms), fmt.Sprint(r.backup.vms); got != want {
			return fmt.Errorf("the VMs that were ever created are %s, want %s", got, want)
		}
		waits := func(object metav1.Object) bool {
			_, found := object.GetAnnotations()[v1alpha1.AnnotationKeyAwaitsRestoreUntil]
			return found
		}
		deployment, err := r.deployment(ctx)
		if err != nil {
			return err
		}
		sets := &v1alpha1.MachineSetList{}
		if err := r.list(ctx, sets); err != nil {
			return err
		}
		if waits(deployment) || len(sets.Items) != 1 || slices.ContainsFunc(sets.Items, func(set v1alpha1.MachineSet) bool { return waits(&set) }) {
			return fmt.Errorf("%d MachineSets; the MachineDeployment or a MachineSet awaits the restore of others", len(sets.Items))
		}
		return running(replicas)(ctx, r)
	}
}

// createdVMs returns the provider IDs of all VMs that were ever created, by the keys of their Machines.
func (r *run) createdVMs() (map[string][]string, error) {
	journal, err := r.cloud.Journal()
	if err != nil {
		return nil, err
	}
	vms := map[string][]string{}
	for machine, history := range sim.Histories(journal) {
		vms[machine] = history.ProviderIDs
	}
	return vms, nil
}

// noneDeleted requires that no Machine is deleted.
func noneDeleted(_ *run, was, is moment) error {
	for name := range was.machines {
		if machine, exists := is.machines[name]; !exists || !machine.DeletionTimestamp.IsZero() {
			return fmt.Errorf("%w: %s", errNotKept, name)
		}
	}
	return nil
}
