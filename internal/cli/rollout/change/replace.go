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

// AnnotationReplacing on a deployment names the Machine for whose replacement it has one more replica, and
// how many replicas that makes: NAME/REPLICAS. It is removed with that replica.
const AnnotationReplacing = "rollout.millwright.dev/replacing"

// Replacement is the replacement of one Machine.
type Replacement struct {
	// Machine to replace.
	Machine *v1alpha1.Machine
	// First reports whether the new Machine is created before the old one is deleted.
	First bool
	// Replicas are those of the deployment with the new Machine, if it is first.
	Replicas int32
	// Begun reports whether the deployment has these replicas already.
	Begun bool
}

// Replace returns how a Machine of the deployment is replaced: the new one first if the strategy allows
// more Machines. It is an error if the Machine is replaced or kept in any case.
func Replace(f rollout.Facts, name string, now time.Time) (Replacement, error) {
	d := f.Deployment
	r := Replacement{Machine: machineOf(f, name)}
	surge, _ := rules.Bounds(d)
	r.First, r.Replicas = surge > 0, d.Spec.Replicas+1
	replaced, replicas := replacing(d)
	switch {
	case replaced == name:
		r.First, r.Begun, r.Replicas = true, true, replicas
	case replaced != "":
		return Replacement{}, fmt.Errorf("machine deployment %s/%s has one more replica for the replacement of machine %s: finish that first, with the same command for that machine", d.Namespace, d.Name, replaced)
	}
	if err := refusePaused(d, "restarted"); err != nil {
		return Replacement{}, err
	}
	if err := refuseInvalid(f, "restarted"); err != nil {
		return Replacement{}, err
	}
	err := refuseMachine(f, r.Machine, name, now)
	if err != nil && r.Begun {
		err = fmt.Errorf("%w, and the deployment has one more replica for it. %s", err, r.Withdrawal(f.Key))
	}
	return r, err
}

// refuseMachine says why a Machine is not to be replaced by itself.
func refuseMachine(f rollout.Facts, machine *v1alpha1.Machine, name string, now time.Time) error {
	of := fmt.Sprintf("machine deployment %s", f.Key)
	current := f.Current()
	switch {
	case !f.Deployment.DeletionTimestamp.IsZero():
		return fmt.Errorf("%s is being deleted", of)
	case f.Deployment.Spec.RollbackTo != nil:
		return fmt.Errorf("%s is to be rolled back first. %s", of, Withdrawal(f.Key))
	case machine == nil:
		return fmt.Errorf("machine %s is not one of %s", name, of)
	case report.Leaves(machine):
		return fmt.Errorf("machine %s is being deleted already", name)
	case machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && !preservation.Active(machine, now):
		return fmt.Errorf("machine %s is Failed: its machine set replaces it without this", name)
	case preservation.Active(machine, now):
		return fmt.Errorf(`machine %s is preserved: run "millwright machine release %s" first`, name, name)
	case current == nil || !metav1.IsControlledBy(machine, current):
		return fmt.Errorf("machine %s is of an old revision of %s, whose rollout replaces it", name, of)
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

// replacing returns which Machine a deployment has one more replica for, and how many replicas that
// makes; empty if there is none, or if the annotation cannot be read.
func replacing(d *v1alpha1.MachineDeployment) (name string, replicas int32) {
	name, number, _ := strings.Cut(d.Annotations[AnnotationReplacing], "/")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		return "", 0
	}
	return name, int32(n)
}

// Begin asks for the new Machine.
func (r Replacement) Begin(ctx context.Context, c client.Client, key types.NamespacedName) error {
	_, err := write(ctx, c, key, func(d *v1alpha1.MachineDeployment) error {
		if d.Spec.Replicas != r.Replicas-1 {
			return fmt.Errorf("machine deployment %s was scaled to %d meanwhile: nothing is replaced", key, d.Spec.Replicas)
		}
		d.Spec.Replicas = r.Replicas
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, AnnotationReplacing, r.Machine.Name+"/"+strconv.Itoa(int(r.Replicas)))
		return nil
	})
	return err
}

// Enough reports whether as many Machines are available as the deployment had replicas, without the one
// that is replaced. It is an error if that one, or the wish, is gone.
func (r Replacement) Enough(f rollout.Facts) (bool, error) {
	d := f.Deployment
	if name, _ := replacing(d); name != r.Machine.Name || d.Spec.Replicas != r.Replicas {
		return false, fmt.Errorf("machine deployment %s was scaled to %d meanwhile, from %d: machine %s is not replaced", f.Key, d.Spec.Replicas, r.Replicas, r.Machine.Name)
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

// Finish has the old Machine deleted: by its name, with the replica that was one more, if the new one is
// there.
func (r Replacement) Finish(ctx context.Context, c client.Client, key types.NamespacedName, now time.Time) error {
	if !r.First {
		err := c.Delete(ctx, r.Machine, client.Preconditions{UID: &r.Machine.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting machine %s: %w", r.Machine.Name, err)
		}
		return nil
	}
	_, err := write(ctx, c, key, func(d *v1alpha1.MachineDeployment) error {
		if d.Spec.Replicas != r.Replicas {
			return fmt.Errorf("machine deployment %s was scaled to %d meanwhile, from %d: machine %s is not replaced", key, d.Spec.Replicas, r.Replicas, r.Machine.Name)
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

// Withdrawal says how to take back the replica that was asked for.
func (r Replacement) Withdrawal(key types.NamespacedName) string {
	return fmt.Sprintf("To take that replica back: kubectl -n %s patch machinedeployments.machine.sapcloud.io %s --type merge -p '{\"metadata\":{\"annotations\":{%q:null}},\"spec\":{\"replicas\":%d}}'", key.Namespace, key.Name, AnnotationReplacing, r.Replicas-1)
}

// Gone reports whether the old Machine is gone, and its deployment has as many as it wants.
func (r Replacement) Gone(f rollout.Facts) bool {
	for _, machine := range f.Machines {
		if machine.UID == r.Machine.UID {
			return false
		}
	}
	return rollout.StatusOf(f, time.Now()).Outcome == rollout.Complete
}
