// Package change pauses, resumes, restarts and rolls back MachineDeployments.
//
// It needs no manager, only API access, and writes only fields that MCM knows as well.
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

// AnnotationRestarted on the template of a deployment is when a restart was last requested, in RFC
// 3339. As a change of the template it causes a rollout, also under MCM.
const AnnotationRestarted = "rollout.millwright.dev/restarted-at"

// ErrUnchanged is returned if the deployment has the template of the revision already.
var ErrUnchanged = errors.New("not rolled back")

// Pause stops rollouts of a deployment. One that is paused is an error.
func Pause(ctx context.Context, c client.Client, key types.NamespacedName) error {
	return setPaused(ctx, c, key, true, "is paused already")
}

// Resume lets rollouts of a deployment go on. One that is not paused is an error.
func Resume(ctx context.Context, c client.Client, key types.NamespacedName) error {
	return setPaused(ctx, c, key, false, "is not paused")
}

func setPaused(ctx context.Context, c client.Client, key types.NamespacedName, paused bool, already string) error {
	_, err := write(ctx, c, key, func(d *v1alpha1.MachineDeployment) error {
		if d.Spec.Paused == paused {
			return fmt.Errorf("machine deployment %s %s", key, already)
		}
		d.Spec.Paused = paused
		return nil
	})
	return err
}

// Restart has all machines of a deployment replaced, by its strategy. One that is paused, or
// that is to be rolled back, is an error: a rollback writes the whole template.
func Restart(ctx context.Context, c client.Client, key types.NamespacedName, now time.Time) error {
	_, err := write(ctx, c, key, func(d *v1alpha1.MachineDeployment) error {
		if err := refusePaused(d, "restarted"); err != nil {
			return err
		}
		if d.Spec.RollbackTo != nil {
			return fmt.Errorf("machine deployment %s cannot be restarted: the wish to roll back to %s is not answered yet, and would take the restart back. %s", key, pool.RollbackRevision(d.Spec.RollbackTo), Withdrawal(key))
		}
		at := now.UTC().Format(time.RFC3339)
		if d.Spec.Template.Annotations[AnnotationRestarted] == at {
			return fmt.Errorf("machine deployment %s was restarted within this second already", key)
		}
		metav1.SetMetaDataAnnotation(&d.Spec.Template.ObjectMeta, AnnotationRestarted, at)
		return nil
	})
	return err
}

func refusePaused(d *v1alpha1.MachineDeployment, done string) error {
	if d.Spec.Paused {
		return fmt.Errorf(`machine deployment %s/%s is paused and cannot be %s: run "millwright rollout resume %s" first`, d.Namespace, d.Name, done, d.Name)
	}
	return nil
}

// refuseInvalid returns what keeps a manager from doing anything with a deployment: the rollback would
// stay pending, and be done much later.
func refuseInvalid(f rollout.Facts, done string) error {
	d := f.Deployment
	problem := rules.Invalid(d, f.Sets)
	if problem == "" && rules.SelectsAll(d) {
		problem = "spec.selector: it selects all machines"
	}
	if problem == "" {
		return nil
	}
	return fmt.Errorf("machine deployment %s/%s cannot be %s before its spec is corrected: %s", d.Namespace, d.Name, done, problem)
}

// Withdrawal says how to withdraw a rollback that was asked for.
func Withdrawal(key types.NamespacedName) string {
	return fmt.Sprintf("To withdraw that: kubectl -n %s patch machinedeployments.machine.sapcloud.io %s --type merge -p '{\"spec\":{\"rollbackTo\":null}}'", key.Namespace, key.Name)
}

// Rollback is a rollback that was requested, and that the manager does.
type Rollback struct {
	// Revision to go back to.
	Revision int64
	// target is the set of that revision; deployment is what was written with the request.
	target     *v1alpha1.MachineSet
	deployment *v1alpha1.MachineDeployment
}

// Undo requests a rollback to a revision; 0 is the one before the current. The manager answers by
// changing the template. It returns ErrUnchanged if the template is that of the revision, and an error
// for a deployment whose spec no manager accepts.
func Undo(ctx context.Context, c client.Client, key types.NamespacedName, number int64) (Rollback, error) {
	wish := Rollback{}
	written, err := write(ctx, c, key, func(d *v1alpha1.MachineDeployment) error {
		sets := &v1alpha1.MachineSetList{}
		if err := c.List(ctx, sets, client.InNamespace(key.Namespace)); err != nil {
			return fmt.Errorf("listing machine sets: %w", err)
		}
		f := rollout.FactsOf(d, sets.Items, nil)
		if err := errors.Join(refusePaused(d, "rolled back"), refuseInvalid(f, "rolled back")); err != nil {
			return err
		}
		target, err := rollout.Find(f, number)
		if err != nil {
			return err
		}
		wish.target, wish.Revision = target, revision.Number(target)
		if revision.Same(&target.Spec.Template, &d.Spec.Template) {
			return fmt.Errorf("%w: its template is that of revision %d already", ErrUnchanged, wish.Revision)
		}
		// By its number, and so to the one that was looked at, whatever comes first.
		d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: wish.Revision}
		return nil
	})
	wish.deployment = written
	return wish, err
}

// Done reports whether the manager has rolled the deployment back. Any other answer of it is an error.
func (r Rollback) Done(f rollout.Facts) (bool, error) {
	d := f.Deployment
	switch {
	case d.Generation < r.deployment.Generation:
		return false, nil
	case d.Spec.RollbackTo != nil && d.Spec.Paused:
		return false, fmt.Errorf("machine deployment %s/%s was paused meanwhile: it rolls back to revision %d when it is resumed", d.Namespace, d.Name, r.Revision)
	case d.Spec.RollbackTo != nil:
		return false, refuseInvalid(f, "rolled back")
	case revision.Same(&d.Spec.Template, &r.target.Spec.Template):
		return true, nil
	case !slices.ContainsFunc(f.Sets, func(set *v1alpha1.MachineSet) bool { return set.UID == r.target.UID }):
		return false, fmt.Errorf("machine deployment %s/%s was not rolled back: machine set %s of revision %d is gone", d.Namespace, d.Name, r.target.Name, r.Revision)
	}
	return false, fmt.Errorf("machine deployment %s/%s was not rolled back to revision %d: its template was changed meanwhile", d.Namespace, d.Name, r.Revision)
}

// conflictBackoff is for writes that conflict: during a rollout, the manager writes the status of a
// deployment several times a second.
var conflictBackoff = wait.Backoff{Steps: 10, Duration: 10 * time.Millisecond, Factor: 1.6, Jitter: 0.2}

// write changes a deployment, and tries again on conflicts. One that is being deleted is an error.
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
			return fmt.Errorf("changing machine deployment %s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return changed, nil
}
