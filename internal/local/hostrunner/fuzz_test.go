package hostrunner

import (
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/absurd"
)

// FuzzAdmit checks that an admitted Pod runs the hypervisor's command, and mounts only directories below its own
// root.
func FuzzAdmit(f *testing.F) {
	f.Add([]byte(nil), "/disk", "data")
	f.Add([]byte(nil), "/../../etc", "data")
	f.Add([]byte(nil), "/a/./b//c", "../x")
	absurd.Seed(f, func(data []byte) { f.Add(data, "/disk", "data") })
	f.Fuzz(func(t *testing.T, data []byte, mount, item string) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "uid"},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{{
					Name: "hypervisor", Command: vmpb.Command(), TerminationMessagePath: vmpb.TerminationMessagePath,
					VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: mount}}, Env: []corev1.EnvVar{{Name: vmpb.EnvSpec, Value: "b"}},
				}},
				Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
					SecretName: "s", Items: []corev1.KeyToPath{{Key: "k", Path: item}},
				}}}},
			},
		}
		absurd.Objects(data, pod)
		if admit(pod) != nil {
			return
		}
		spec := pod.Spec
		if len(spec.Containers) != 1 || strings.Join(spec.Containers[0].Command, " ") != strings.Join(vmpb.Command(), " ") || len(spec.Containers[0].Args) > 0 {
			t.Errorf("runs something else: %+v", spec.Containers)
		}
		checkMounts(t, spec.Containers[0].VolumeMounts)
		for _, volume := range spec.Volumes {
			checkVolume(t, volume.VolumeSource)
		}
	})
}

func checkMounts(t *testing.T, mounts []corev1.VolumeMount) {
	t.Helper()
	for _, m := range mounts {
		if m.MountPath != path.Clean(m.MountPath) || !path.IsAbs(m.MountPath) || m.MountPath == "/" || m.SubPath != "" {
			t.Errorf("mounts %+v", m)
		}
	}
}

func checkVolume(t *testing.T, volume corev1.VolumeSource) {
	t.Helper()
	if volume.HostPath != nil {
		t.Errorf("admits the host's directory %s", volume.HostPath.Path)
	}
	if volume.Secret == nil || volume.EmptyDir != nil || volume.PersistentVolumeClaim != nil {
		return
	}
	for _, file := range volume.Secret.Items {
		if clean := path.Clean("/" + file.Path); file.Path == "" || clean != "/"+file.Path {
			t.Errorf("writes a file %q", file.Path)
		}
	}
}
