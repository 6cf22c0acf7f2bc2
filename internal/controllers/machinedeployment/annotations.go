package machinedeployment

import (
	"maps"
	"math"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
)

// notCopied are the annotations of a deployment that do not go to its sets.
var notCopied = []string{
	"kubectl.kubernetes.io/last-applied-configuration",
	v1alpha1.AnnotationKeyRevision,
	v1alpha1.AnnotationKeyRevisionHistory,
	v1alpha1.AnnotationKeyDesiredReplicas,
	v1alpha1.AnnotationKeyMaxReplicas,
	v1alpha1.AnnotationKeyPreferNoSchedule,
	v1alpha1.AnnotationKeyUnfreeze,
	v1alpha1.AnnotationKeyTriggerDeletion,
}

func copiedAnnotations(deployment *v1alpha1.MachineDeployment) map[string]string {
	copied := map[string]string{}
	maps.Copy(copied, deployment.Annotations)
	for _, key := range notCopied {
		delete(copied, key)
	}
	return copied
}

// ofOperation are the annotations of a deployment that concern how its machines are made and
// chosen now, whatever template they have. So they go to old sets, too, and a rollback
// leaves them. All others an old set keeps as they were when it was current: they say why it
// was made, and a rollback brings them back. MCM overwrites those whenever it scales a set.
var ofOperation = []string{v1alpha1.AnnotationKeyLastReplicaChange, v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout}

// takeOver gives a set that is scaled the annotations of its deployment that concern it.
func takeOver(set *v1alpha1.MachineSet, deployment *v1alpha1.MachineDeployment) {
	for _, key := range ofOperation {
		if value, ok := deployment.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&set.ObjectMeta, key, value)
		}
	}
}

// isTrue is the value of labels and annotations that say yes.
const isTrue = "True"

// setReplicaAnnotations records for which size of the deployment a set was last scaled.
func setReplicaAnnotations(set *v1alpha1.MachineSet, f facts, size int32) {
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyDesiredReplicas, strconv.Itoa(int(size)))
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyMaxReplicas, strconv.Itoa(int(size)+int(f.surge)))
}

// longestHistory is how many characters the history of a set's revisions may have, as that of a
// ReplicaSet in Kubernetes.
const longestHistory = 2000

// setRevision makes a set the newest. A number that it had before goes to its history, of which
// the oldest numbers go if it gets too long.
func setRevision(set *v1alpha1.MachineSet, last int64) {
	if was := set.Annotations[v1alpha1.AnnotationKeyRevision]; was != "" {
		history := was
		if before := set.Annotations[v1alpha1.AnnotationKeyRevisionHistory]; before != "" {
			history = strings.Join([]string{before, was}, ",")
		}
		for len(history) > longestHistory {
			_, history, _ = strings.Cut(history, ",")
		}
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyRevisionHistory, history)
	}
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyRevision, strconv.FormatInt(last+1, 10))
}

// lastRevision is the highest number of the old sets.
func lastRevision(f facts) int64 {
	var last int64
	for _, set := range f.old {
		last = max(last, followed(set))
	}
	return last
}

// followed is the revision of a set or a deployment, as far as another one can come after it.
// The last of all numbers somebody wrote there; it does not count.
func followed(of metav1.Object) int64 {
	number := revision.Number(of)
	if number == math.MaxInt64 {
		return 0
	}
	return number
}

// templateRevision is the number that the deployment's template has, or is about to get.
func templateRevision(f facts) int64 {
	last := lastRevision(f)
	switch {
	case f.current == nil:
		return max(followed(f.deployment), last) + 1
	case revision.Number(f.current) <= last:
		return last + 1
	default:
		return revision.Number(f.current)
	}
}

// frozen reports whether a set creates nothing because too many machines exist.
func frozen(set *v1alpha1.MachineSet) bool { return set.Labels[v1alpha1.LabelKeyFreeze] == isTrue }
