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

// Refused is why a group is not changed.
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
		return refusef("a delta of %d is not above 0", delta)
	case size > int64(bounds.Max):
		return refusef("%d machines and %d more are above the maximum of %d", deployment.Spec.Replicas, delta, bounds.Max)
	}
	deployment.Spec.Replicas += delta
	return nil
}

// Decrease lowers the replicas of a deployment by Machines that do not exist yet, of which it has that
// many.
func Decrease(deployment *v1alpha1.MachineDeployment, delta int32, exist int) error {
	switch size := int64(deployment.Spec.Replicas) + int64(delta); {
	case delta >= 0:
		return refusef("a delta of %d is not below 0", delta)
	case size < int64(exist):
		return refusef("%d of %d machines exist, so that %d cannot be taken back", exist, deployment.Spec.Replicas, -int64(delta))
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

// Delete names Machines of a deployment for deletion, and lowers its replicas by their number, as
// Gardener's autoscaler does. Those that go anyway are left out. It reports whether anything is changed.
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
		return false, refusef("a rollout of the deployment goes on")
	case deployment.Spec.Replicas-fewer < bounds.Min:
		return false, refusef("%d machines less than %d are below the minimum of %d", fewer, deployment.Spec.Replicas, bounds.Min)
	}
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyTriggerDeletion, strings.Join(entries, ","))
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyLastReplicaChange, at)
	deployment.Spec.Replicas -= fewer
	return true, nil
}

// rolls reports whether Machines of an earlier template are being replaced. Their nodes are emptied, so
// that the autoscaler would take them for ones that nobody needs.
func rolls(deployment *v1alpha1.MachineDeployment) bool {
	switch status.Progress(deployment.Status).Reason {
	case "", v1alpha1.DeploymentReasonComplete, v1alpha1.DeploymentReasonPaused:
		return false
	}
	return deployment.Status.UpdatedReplicas < deployment.Status.Replicas
}
