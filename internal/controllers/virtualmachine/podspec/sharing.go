package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// annotationSharing is the Sharing of a Pod's disks, if it keeps the VM from migrating.
const annotationSharing = "vm.metropolis.monogon.dev/disk-sharing"

// Sharing is whether the target of a live migration has the disks of the source. It is a property of a Pod: a hypervisor is
// started for the one or the other.
type Sharing string

const (
	// Copied means that it has disks of its own, to which those of the source are copied.
	Copied Sharing = ""
	// Shared means that it has the same disks.
	Shared Sharing = "Shared"
	// Mixed means that it could have a part of the same disks only.
	Mixed Sharing = "Mixed"
	// Unlocked means that it could have the same disks, and nobody knows whether anything keeps two hypervisors apart then.
	Unlocked Sharing = "Unlocked"
)

// SharingFor returns the sharing of the disks of the hypervisor in a Pod that is to be created. claims are those of the VM.
// excluded reports whether two hypervisors that both have the disks attached are known to exclude each other.
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

// Set makes the disks of the hypervisor in a Pod, which was not created yet, ones of this sharing.
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
		return fmt.Errorf("pod %s has no spec of a hypervisor", pod.Name)
	}
	container.Env[at].Value = strings.ReplaceAll(text, "$", "$$")
	return nil
}

// DiskSharing returns the sharing of the disks of the hypervisor in a Pod. A Pod that cannot be read, or of an earlier version,
// has disks that are copied.
func DiskSharing(pod *corev1.Pod) Sharing {
	if pod == nil {
		return Copied
	}
	if spec, err := specOf(pod); err == nil && spec.GetRootDiskShared() {
		return Shared
	}
	return Sharing(pod.Annotations[annotationSharing])
}
