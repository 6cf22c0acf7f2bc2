package podspec

import (
	"cmp"
	"path"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// volumes are the volumes of a Pod, and where its container mounts them.
type volumes struct {
	all     []corev1.Volume
	mounts  []corev1.VolumeMount
	devices []corev1.VolumeDevice
}

// add adds a volume that is mounted at a directory.
func (v *volumes) add(name string, source corev1.VolumeSource, directory string) {
	v.all = append(v.all, corev1.Volume{Name: name, VolumeSource: source})
	v.mounts = append(v.mounts, corev1.VolumeMount{Name: name, MountPath: directory})
}

// addDisk adds the volume of a disk, which the container has at a path.
func (v *volumes) addDisk(name string, source corev1.VolumeSource, at string, isDevice bool) {
	if !isDevice {
		v.add(name, source, path.Dir(at))
		return
	}
	v.all = append(v.all, corev1.Volume{Name: name, VolumeSource: source})
	v.devices = append(v.devices, corev1.VolumeDevice{Name: name, DevicePath: at})
}

func claimed(name string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

func volumesFor(vm *v1alpha1.VirtualMachine, of *vmpb.VMSpec, s Settings) volumes {
	var v volumes
	v.add(volumeRun, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, vmpb.DirRun)
	if !of.GetDisksServed() {
		v.addDisks(vm, of)
	}
	if volume, directory := identityFor(vm, s); directory != "" {
		v.all = append(v.all, volume)
		v.mounts = append(v.mounts, corev1.VolumeMount{Name: volume.Name, MountPath: directory, ReadOnly: true})
	}
	if from := vm.Spec.UserData; from != nil {
		v.all = append(v.all, corev1.Volume{Name: volumeUserData, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{
				SecretName: from.SecretRef.Name,
				Items:      []corev1.KeyToPath{{Key: UserDataKey(from), Path: path.Base(vmpb.UserDataPath)}},
			},
		}})
		v.mounts = append(v.mounts, corev1.VolumeMount{Name: volumeUserData, MountPath: path.Dir(vmpb.UserDataPath), ReadOnly: true})
	}
	return v
}

// addDisks adds the volumes of all disks.
func (v *volumes) addDisks(vm *v1alpha1.VirtualMachine, of *vmpb.VMSpec) {
	root := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	if claim := vm.Status.VolumeClaimName; claim != "" {
		root = claimed(claim)
	}
	v.addDisk(volumeDisk, root, of.GetRootDiskPath(), of.GetRootDiskPath() == vmpb.RootDevicePath)
	for _, disk := range of.GetDataDisks() {
		source := claimed(DataClaimName(vm, disk.GetName()))
		v.addDisk(volumeDisk+"-"+disk.GetName(), source, disk.GetPath(), disk.GetPath() == vmpb.DataDevicePath(disk.GetName()))
	}
}

// UserDataKey returns the key of the user data in the Secret. The default is userData.
func UserDataKey(from *v1alpha1.UserData) string {
	return cmp.Or(from.SecretRef.Key, "userData")
}

// userDataOf returns the user data that a hypervisor Pod mounts, without the host name; nil if it mounts none.
func userDataOf(pod *corev1.Pod) *v1alpha1.UserData {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name != volumeUserData || volume.Secret == nil || len(volume.Secret.Items) != 1 {
			continue
		}
		return &v1alpha1.UserData{SecretRef: v1alpha1.SecretKeyReference{Name: volume.Secret.SecretName, Key: volume.Secret.Items[0].Key}}
	}
	return nil
}

// ClaimName returns the name of the claim of a Pod's root disk; empty if the disk is ephemeral.
func ClaimName(pod *corev1.Pod) string {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == volumeDisk && volume.PersistentVolumeClaim != nil {
			return volume.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// Outdated reports whether a Pod was created from another generation of its VM. A Pod that does not record a
// generation is treated as current.
func Outdated(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) bool {
	from, known := pod.Annotations[annotationGeneration]
	return known && from != strconv.FormatInt(vm.Generation, 10)
}

// OwnerReference returns the reference to a VM that its own objects have.
func OwnerReference(vm *v1alpha1.VirtualMachine) metav1.OwnerReference {
	return *metav1.NewControllerRef(vm, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.VirtualMachineKind))
}
