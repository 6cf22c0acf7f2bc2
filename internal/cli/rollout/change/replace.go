package change

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	rules "github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

// AnnotationReplacing is an annotation of a MachineDeployment that has one additional replica during the replacement of
// a Machine. Its value is NAME/REPLICAS: the Machine's name, and the number of replicas including the additional one.
// It is removed together with that replica.
const AnnotationReplacing = "rollout.millwright.dev/replacing"

// Replacement is the replacement of one Machine.
type Replacement struct {
	// Machine is the Machine to replace.
	Machine *v1alpha1.Machine
	// First is true if the new Machine is created before the old one is deleted.
	First bool
	// Replicas is the number of replicas of the MachineDeployment including the new Machine. It is used if First is set.
	Replicas int32
	// Started is true if the MachineDeployment already has these replicas.
	Started bool
}

// Replace returns how to replace a Machine of the MachineDeployment. The new Machine is created first if the strategy
// allows additional Machines. Replace returns an error if the Machine cannot be replaced, or is being replaced anyway.
func Replace(f rollout.Facts, name string, now time.Time) (Replacement, error) {
	d := f.Deployment
	r := Replacement{Machine: machineOf(f, name)}
	surge, _ := rules.Bounds(d)
	r.First, r.Replicas = surge > 0, d.Spec.Replicas+1
	replaced, replicas := replacing(d)
	switch {
	case replaced == name:
		r.First, r.Started, r.Replicas = true, true, replicas
	case replaced != "":
		return Replacement{}, fmt.Errorf("machine deployment %s/%s is replacing machine %s; finish that first by running the same command for that machine", d.Namespace, d.Name, replaced)
	}
	if err := refusePaused(d, "restarted"); err != nil {
		return Replacement{}, err
	}
	if err := refuseInvalid(f, "restarted"); err != nil {
		return Replacement{}, err
	}
	err := refuseMachine(f, r.Machine, name, now)
	if err != nil && r.Started {
		err = fmt.Errorf("%w; the deployment still has one additional replica for it; %s", err, r.Withdrawal(f.Key))
	}
	return r, err
}

// refuseMachine returns an error if the Machine cannot be replaced individually.
func refuseMachine(f rollout.Facts, machine *v1alpha1.Machine, name string, now time.Time) error {
	of := fmt.Sprintf("machine deployment %s", f.Key)
	current := f.Current()
	switch {
	case !f.Deployment.DeletionTimestamp.IsZero():
		return fmt.Errorf("%s is being deleted", of)
	case f.Deployment.Spec.RollbackTo != nil:
		return fmt.Errorf("%s has a pending rollback; %s", of, Withdrawal(f.Key))
	case machine == nil:
		return fmt.Errorf("machine %s does not belong to %s", name, of)
	case report.IsDeleting(machine):
		return fmt.Errorf("machine %s is already being deleted", name)
	case machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && !preservation.Active(machine, now):
		return fmt.Errorf("machine %s is Failed: its machine set already replaces it", name)
	case preservation.Active(machine, now):
		return fmt.Errorf(`machine %s is preserved: run "millwright machine release %s" first`, name, name)
	case current == nil || !metav1.IsControlledBy(machine, current):
		return fmt.Errorf("machine %s has an old revision of %s; the rollout replaces it", name, of)
	}
	return nil
}

func machineOf(f rollout.Facts, name string) *v1alpha1.Machine {
	for _, machine := range f.Machines {
		if machine.Name == name {
			return machine
		}
	}
	return nil
}

// replacing parses AnnotationReplacing. The name is empty if the annotation is missing or invalid.
func replacing(d *v1alpha1.MachineDeployment) (name string, replicas int32) {
	name, number, _ := strings.Cut(d.Annotations[AnnotationReplacing], "/")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		return "", 0
	}
	return name, int32(n)
}

// Begin requests the new Machine by adding a replica.
func (r Replacement) Begin(ctx context.Context, c client.Client, key types.NamespacedName) error {
	_, err := write(ctx, c, key, func(d *v1alpha1.MachineDeployment) error {
		if d.Spec.Replicas != r.Replicas-1 {
			return fmt.Errorf("machine deployment %s was scaled to %d in the meantime: nothing was replaced", key, d.Spec.Replicas)
		}
		d.Spec.Replicas = r.Replicas
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, AnnotationReplacing, r.Machine.Name+"/"+strconv.Itoa(int(r.Replicas)))
		return nil
	})
	return err
}

// Enough reports whether enough Machines are available without the one that is replaced: as many as the
// MachineDeployment had replicas before. It returns an error if the MachineDeployment was scaled in the meantime.
func (r Replacement) Enough(f rollout.Facts) (bool, error) {
	d := f.Deployment
	if name, _ := replacing(d); name != r.Machine.Name || d.Spec.Replicas != r.Replicas {
		return false, fmt.Errorf("machine deployment %s was scaled to %d in the meantime, from %d: machine %s was not replaced", f.Key, d.Spec.Replicas, r.Replicas, r.Machine.Name)
	}
	set := scale.Facts{Set: f.Current(), EnforceMinReady: true, Now: time.Now()}
	if set.Set == nil {
		return false, nil
	}
	available := int32(0)
	for _, machine := range f.Of(set.Set) {
		if machine.UID != r.Machine.UID && counts.Active(machine) && counts.Usable(machine) && scale.AvailableIn(machine, set) == 0 {
			available++
		}
	}
	return available >= r.Replicas-1, nil
}

// Finish deletes the old Machine. If the new Machine was created first, Finish removes the additional replica and marks
// the old Machine for deletion.
func (r Replacement) Finish(ctx context.Context, c client.Client, key types.NamespacedName, now time.Time) error {
	if !r.First {
		err := c.Delete(ctx, r.Machine, client.Preconditions{UID: &r.Machine.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot delete machine %s: %w", r.Machine.Name, err)
		}
		return nil
	}
	_, err := write(ctx, c, key, func(d *v1alpha1.MachineDeployment) error {
		if d.Spec.Replicas != r.Replicas {
			return fmt.Errorf("machine deployment %s was scaled to %d in the meantime, from %d: machine %s was not replaced", key, d.Spec.Replicas, r.Replicas, r.Machine.Name)
		}
		d.Spec.Replicas--
		delete(d.Annotations, AnnotationReplacing)
		named := r.Machine.Name + "~" + now.UTC().Format(time.RFC3339)
		if others := d.Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; others != "" {
			named = others + "," + named
		}
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyTriggerDeletion, named)
		return nil
	})
	return err
}

// Withdrawal returns a hint with the command that removes the additional replica.
func (r Replacement) Withdrawal(key types.NamespacedName) string {
	return fmt.Sprintf("to remove the additional replica, run: kubectl -n %s patch machinedeployments.machine.sapcloud.io %s --type merge -p '{\"metadata\":{\"annotations\":{%q:null}},\"spec\":{\"replicas\":%d}}'", key.Namespace, key.Name, AnnotationReplacing, r.Replicas-1)
}

// Gone reports whether the old Machine is gone and the rollout of the MachineDeployment is complete.
func (r Replacement) Gone(f rollout.Facts) bool {
	for _, machine := range f.Machines {
		if machine.UID == r.Machine.UID {
			return false
		}
	}
	return rollout.StatusOf(f, time.Now()).Outcome == rollout.Complete
}
