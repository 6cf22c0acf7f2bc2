package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// annotationSharing has the Sharing of a Pod's disks if it prevents live migration.
const annotationSharing = "vm.metropolis.monogon.dev/disk-sharing"

// Sharing describes how the target of a live migration gets the disks of the source. It is a property of a Pod,
// because a hypervisor is started either for shared or for copied disks.
type Sharing string

const (
	// Copied means that the target has its own disks, to which those of the source are copied.
	Copied Sharing = ""
	// Shared means that the target uses the same disks.
	Shared Sharing = "Shared"
	// Mixed means that the target could use only some of the same disks.
	Mixed Sharing = "Mixed"
	// Unlocked means that the target could use the same disks, but nothing is known to exclude two hypervisors from
	// each other.
	Unlocked Sharing = "Unlocked"
)

// SharingFor returns the sharing for the disks of a hypervisor Pod that has not been created yet. claims are the VM's
// claims. excluded reports whether two hypervisors that have the same disks attached are known to exclude each other.
func SharingFor(pod *corev1.Pod, claims []*corev1.PersistentVolumeClaim, excluded bool) Sharing {
	many := map[string]bool{}
	for _, claim := range claims {
		many[claim.Name] = slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany)
	}
	shared, own := 0, 0
	count := func(claim string) {
		if many[claim] {
			shared++
		} else {
			own++
		}
	}
	count(ClaimName(pod))
	for _, disk := range DataClaims(pod) {
		count(disk.VolumeClaimName)
	}
	switch {
	case shared == 0:
		return Copied
	case own > 0:
		return Mixed
	case !excluded:
		return Unlocked
	}
	return Shared
}

// Set configures the sharing in a hypervisor Pod that has not been created yet.
func (s Sharing) Set(pod *corev1.Pod) error {
	if s == Copied {
		return nil
	}
	if s != Shared {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationSharing, string(s))
		return nil
	}
	spec, err := specOf(pod)
	if err != nil {
		return err
	}
	spec.RootDiskShared = true
	text, err := compact(spec)
	if err != nil {
		return err
	}
	container := Hypervisor(pod)
	at := slices.IndexFunc(container.Env, func(variable corev1.EnvVar) bool { return variable.Name == vmpb.EnvSpec })
	if at < 0 {
		return fmt.Errorf("pod %s has no hypervisor spec", pod.Name)
	}
	container.Env[at].Value = strings.ReplaceAll(text, "$", "$$")
	return nil
}

// DiskSharing returns the sharing of the disks of a hypervisor Pod. For a Pod that is nil, cannot be parsed, or was
// created by an earlier version, it returns Copied.
func DiskSharing(pod *corev1.Pod) Sharing {
	if pod == nil {
		return Copied
	}
	if spec, err := specOf(pod); err == nil && spec.GetRootDiskShared() {
		return Shared
	}
	return Sharing(pod.Annotations[annotationSharing])
}
