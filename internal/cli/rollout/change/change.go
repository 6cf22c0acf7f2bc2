// Package change pauses, resumes, restarts and rolls back MachineDeployments.
//
// It needs only access to the API server, and writes only fields that MCM supports too.
package change

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	rules "github.com/millwright-dev/millwright/internal/pool/rollout"
)

// AnnotationRestarted is an annotation of the template of a MachineDeployment. Its value is the time of the last
// restart request in RFC 3339. Because it changes the template, it causes a rollout, with MCM as well.
const AnnotationRestarted = "rollout.millwright.dev/restarted-at"

// ErrUnchanged is returned if the MachineDeployment already has the template of the revision.
var ErrUnchanged = errors.New("not rolled back")

// Pause pauses the rollouts of a MachineDeployment, and returns it. It returns an error if they are already paused.
func Pause(ctx context.Context, c client.Client, key types.NamespacedName) (*v1alpha1.MachineDeployment, error) {
	return setPaused(ctx, c, key, true, "is already paused")
}

// Resume resumes the rollouts of a MachineDeployment, and returns it. It returns an error if they are not paused.
func Resume(ctx context.Context, c client.Client, key types.NamespacedName) (*v1alpha1.MachineDeployment, error) {
	return setPaused(ctx, c, key, false, "is not paused")
}

func setPaused(ctx context.Context, c client.Client, key types.NamespacedName, paused bool, already string) (*v1alpha1.MachineDeployment, error) {
	return write(ctx, c, key, func(d *v1alpha1.MachineDeployment) error {
		if d.Spec.Paused == paused {
			return fmt.Errorf("machine deployment %s %s", key, already)
		}
		d.Spec.Paused = paused
		return nil
	})
}

// Restart requests the replacement of all machines of a MachineDeployment according to its strategy, and returns the
// MachineDeployment. It returns an error if the MachineDeployment is paused or has a pending rollback, which would overwrite the template.
func Restart(ctx context.Context, c client.Client, key types.NamespacedName, now time.Time) (*v1alpha1.MachineDeployment, error) {
	return write(ctx, c, key, func(d *v1alpha1.MachineDeployment) error {
		if err := refusePaused(d, "restarted"); err != nil {
			return err
		}
		if d.Spec.RollbackTo != nil {
			return fmt.Errorf("machine deployment %s cannot be restarted: a rollback to %s is pending and would undo the restart; %s", key, pool.RollbackRevision(d.Spec.RollbackTo), Withdrawal(key))
		}
		at := now.UTC().Format(time.RFC3339)
		if d.Spec.Template.Annotations[AnnotationRestarted] == at {
			return fmt.Errorf("machine deployment %s was already restarted within this second; try again", key)
		}
		metav1.SetMetaDataAnnotation(&d.Spec.Template.ObjectMeta, AnnotationRestarted, at)
		return nil
	})
}

func refusePaused(d *v1alpha1.MachineDeployment, done string) error {
	if d.Spec.Paused {
		return fmt.Errorf(`machine deployment %s/%s is paused and cannot be %s: run "millwright rollout resume %s" first`, d.Namespace, d.Name, done, d.Name)
	}
	return nil
}

// refuseInvalid returns an error if the manager rejects the spec of the MachineDeployment. The change would then remain
// pending, and take effect unexpectedly when the spec is corrected.
func refuseInvalid(f rollout.Facts, done string) error {
	d := f.Deployment
	problem := rules.Invalid(d, f.Sets)
	if problem == "" && rules.SelectsAll(d) {
		problem = "spec.selector: selects all machines"
	}
	if problem == "" {
		return nil
	}
	return fmt.Errorf("machine deployment %s/%s cannot be %s until its spec is corrected: %s", d.Namespace, d.Name, done, problem)
}

// Withdrawal returns a hint with the command that cancels a requested rollback.
func Withdrawal(key types.NamespacedName) string {
	return fmt.Sprintf("to cancel the rollback, run: kubectl -n %s patch machinedeployments.machine.sapcloud.io %s --type merge -p '{\"spec\":{\"rollbackTo\":null}}'", key.Namespace, key.Name)
}

// Rollback is a requested rollback. The manager performs it.
type Rollback struct {
	// Revision is the revision to roll back to.
	Revision int64
	// Deployment is the MachineDeployment as written with the request.
	Deployment *v1alpha1.MachineDeployment
	// target is the MachineSet of that revision.
	target *v1alpha1.MachineSet
}

// Undo requests a rollback to a revision; 0 is the previous revision. The manager performs the rollback by changing the
// template. Undo returns ErrUnchanged if the template is already that of the revision, and another error if the manager
// would reject the spec of the MachineDeployment.
func Undo(ctx context.Context, c client.Client, key types.NamespacedName, number int64) (Rollback, error) {
	rollback := Rollback{}
	written, err := write(ctx, c, key, func(d *v1alpha1.MachineDeployment) error {
		sets := &v1alpha1.MachineSetList{}
		if err := c.List(ctx, sets, client.InNamespace(key.Namespace)); err != nil {
			return fmt.Errorf("cannot list machine sets: %w", err)
		}
		f := rollout.FactsOf(d, sets.Items, nil)
		if err := errors.Join(refusePaused(d, "rolled back"), refuseInvalid(f, "rolled back")); err != nil {
			return err
		}
		target, err := rollout.Find(f, number)
		if err != nil {
			return err
		}
		rollback.target, rollback.Revision = target, revision.Number(target)
		if revision.Same(&target.Spec.Template, &d.Spec.Template) {
			return fmt.Errorf("%w: the template is already that of revision %d", ErrUnchanged, rollback.Revision)
		}
		// The explicit number selects the revision that was checked here, even if another one is created first.
		d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: rollback.Revision}
		return nil
	})
	rollback.Deployment = written
	return rollback, err
}

// Done reports whether the manager has performed the rollback. It returns an error if the rollback is blocked or can no
// longer happen.
func (r Rollback) Done(f rollout.Facts) (bool, error) {
	d := f.Deployment
	switch {
	case d.Generation < r.Deployment.Generation:
		return false, nil
	case d.Spec.RollbackTo != nil && d.Spec.Paused:
		return false, fmt.Errorf("machine deployment %s/%s was paused in the meantime: it rolls back to revision %d when it is resumed", d.Namespace, d.Name, r.Revision)
	case d.Spec.RollbackTo != nil:
		return false, refuseInvalid(f, "rolled back")
	case revision.Same(&d.Spec.Template, &r.target.Spec.Template):
		return true, nil
	case !slices.ContainsFunc(f.Sets, func(set *v1alpha1.MachineSet) bool { return set.UID == r.target.UID }):
		return false, fmt.Errorf("machine deployment %s/%s was not rolled back: machine set %s of revision %d is gone", d.Namespace, d.Name, r.target.Name, r.Revision)
	}
	return false, fmt.Errorf("machine deployment %s/%s was not rolled back to revision %d: its template was changed in the meantime", d.Namespace, d.Name, r.Revision)
}

// conflictBackoff is the back-off after conflicting writes. During a rollout, the manager updates the status of a
// MachineDeployment several times a second.
var conflictBackoff = wait.Backoff{Steps: 10, Duration: 10 * time.Millisecond, Factor: 1.6, Jitter: 0.2}

// write changes a MachineDeployment, and retries on conflicts. It returns an error if the MachineDeployment is being
// deleted.
func write(ctx context.Context, c client.Client, key types.NamespacedName, do func(*v1alpha1.MachineDeployment) error) (*v1alpha1.MachineDeployment, error) {
	var changed *v1alpha1.MachineDeployment
	err := retry.RetryOnConflict(conflictBackoff, func() error {
		read, err := rollout.Get(ctx, c, key)
		if err != nil {
			return err
		}
		if !read.DeletionTimestamp.IsZero() {
			return fmt.Errorf("machine deployment %s is being deleted", key)
		}
		changed = read.DeepCopy()
		if err := do(changed); err != nil {
			return err
		}
		if err := c.Patch(ctx, changed, client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("cannot change machine deployment %s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return changed, nil
}
