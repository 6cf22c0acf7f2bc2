package autoscaler

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
)

// Refused is the reason why a group is not changed.
type Refused string

// Error implements error.
func (r Refused) Error() string { return string(r) }

func refusef(format string, values ...any) error { return Refused(fmt.Sprintf(format, values...)) }

// Increase raises the replicas of a deployment.
func Increase(deployment *v1alpha1.MachineDeployment, delta int32) error {
	bounds, err := BoundsOf(deployment)
	switch size := int64(deployment.Spec.Replicas) + int64(delta); {
	case err != nil:
		return refusef("%v", err)
	case delta <= 0:
		return refusef("delta %d must be greater than 0", delta)
	case size > int64(bounds.Max):
		return refusef("%d machines plus %d exceed the maximum of %d", deployment.Spec.Replicas, delta, bounds.Max)
	}
	deployment.Spec.Replicas += delta
	return nil
}

// Decrease lowers the replicas of a deployment by Machines that do not exist yet. Exist is the number of
// existing Machines.
func Decrease(deployment *v1alpha1.MachineDeployment, delta int32, exist int) error {
	switch size := int64(deployment.Spec.Replicas) + int64(delta); {
	case delta >= 0:
		return refusef("delta %d must be less than 0", delta)
	case size < int64(exist):
		return refusef("cannot lower the size by %d: %d of %d machines already exist", -int64(delta), exist, deployment.Spec.Replicas)
	}
	deployment.Spec.Replicas += delta
	return nil
}

// Named reports whether a deployment names a Machine for deletion.
func Named(deployment *v1alpha1.MachineDeployment, machine string) bool {
	return slices.ContainsFunc(rollout.ParseNamed(deployment.Annotations[v1alpha1.AnnotationKeyTriggerDeletion]), func(n rollout.Named) bool {
		return n.Name == machine
	})
}

// Delete names Machines of a deployment for deletion and lowers its replicas accordingly, as Gardener's
// autoscaler does. Machines that are being deleted anyway are skipped. It reports whether anything changed.
func Delete(deployment *v1alpha1.MachineDeployment, machines []*v1alpha1.Machine, now time.Time) (bool, error) {
	bounds, err := BoundsOf(deployment)
	if err != nil {
		return false, refusef("%v", err)
	}
	at, entries := now.UTC().Format(time.RFC3339), []string{}
	if before := deployment.Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; before != "" {
		entries = append(entries, before)
	}
	known := len(entries)
	for _, machine := range machines {
		switch {
		case Leaves(machine, now), Named(deployment, machine.Name):
		case preservation.Active(machine, now):
			return false, refusef("machine %s is preserved", machine.Name)
		default:
			entries = append(entries, machine.Name+"~"+at)
		}
	}
	fewer := int32(len(entries) - known)
	switch {
	case fewer == 0:
		return false, nil
	case rolls(deployment):
		return false, refusef("a rollout of the deployment is in progress")
	case deployment.Spec.Replicas-fewer < bounds.Min:
		return false, refusef("%d machines minus %d are below the minimum of %d", deployment.Spec.Replicas, fewer, bounds.Min)
	}
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyTriggerDeletion, strings.Join(entries, ","))
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyLastReplicaChange, at)
	deployment.Spec.Replicas -= fewer
	return true, nil
}

// rolls reports whether Machines of an earlier template are being replaced. Their nodes are being drained, and
// the autoscaler would consider them unneeded.
func rolls(deployment *v1alpha1.MachineDeployment) bool {
	switch status.Progress(deployment.Status).Reason {
	case "", v1alpha1.DeploymentReasonComplete, v1alpha1.DeploymentReasonPaused:
		return false
	}
	return deployment.Status.UpdatedReplicas < deployment.Status.Replicas
}
