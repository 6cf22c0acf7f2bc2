package hostrunner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func TestPod_RunsToCompletion(t *testing.T) {
	b := newTestHost(t)
	b.start()
	type end struct {
		Phase           corev1.PodPhase
		Reason, Message string
		Code, Signal    int32
	}
	cases := map[string]struct {
		reason string
		code   string
		text   string
		want   end
	}{
		"succeeds": {"status 0 is a success", "0", `{"reason":"GuestShutdown"}`,
			end{corev1.PodSucceeded, "Completed", `{"reason":"GuestShutdown"}`, 0, 0}},
		"fails": {"any other status is a failure, whatever the message is", "3", `{"reason":"Stopped"}`,
			end{corev1.PodFailed, "Error", `{"reason":"Stopped"}`, 3, 0}},
		"long": {"a message is truncated like by the kubelet", "1", strings.Repeat("x", 5000),
			end{corev1.PodFailed, "Error", strings.Repeat("x", 4096), 1, 0}},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			b.pod(name, test.code, withEnv(message, test.text))
			pod := b.await(name, test.want.Phase)
			state := pod.Status.ContainerStatuses[0].State.Terminated
			got := end{pod.Status.Phase, state.Reason, state.Message, state.ExitCode, state.Signal}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
			if state.FinishedAt.Before(&state.StartedAt) || state.StartedAt.IsZero() {
				t.Errorf("it ran from %s to %s", state.StartedAt, state.FinishedAt)
			}
		})
	}
}

func TestPod_Environment(t *testing.T) {
	b := newTestHost(t)
	b.config.VolumesDir = t.TempDir()
	b.config.Path, b.config.Images = "/somewhere", "/images"
	claim := b.claim("disk", filepath.Join(b.config.VolumesDir, "disk"))
	_, err := b.client.CoreV1().Secrets(b.Namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "config"}, Data: map[string][]byte{"key": []byte("#guest")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.start()
	b.pod("vm", "run",
		withVolume("disk", "/var/lib/millwright", corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}),
		withVolume("user-data", "/etc/millwright", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "config", Items: []corev1.KeyToPath{{Key: "key", Path: "user-data"}}}}),
		withVolume("token", "/var/run/secrets/millwright", tokenVolume()),
		func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.Env = append(c.Env, corev1.EnvVar{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
				corev1.EnvVar{Name: vmpb.EnvListen, Value: "$(POD_IP):0"}, corev1.EnvVar{Name: "TMPDIR", Value: vmpb.DirRun})
		})
	b.awaitReady("vm")
	pod := b.await("vm", corev1.PodRunning)
	root := b.location(pod).root()

	environment, err := os.ReadFile(filepath.Join(root, vmpb.DirRun, "env"))
	want := strings.Join([]string{
		behavior + "=run", "POD_IP=127.0.0.1", vmpb.EnvListen + "=127.0.0.1:0", "TMPDIR=" + filepath.Join(root, vmpb.DirRun), "PATH=/somewhere",
		vmpb.EnvSwitch + "=", vmpb.EnvOutside + "=", vmpb.EnvImages + "=/images", vmpb.EnvImageServers + "=",
		vmpb.EnvRoot + "=" + root,
	}, "\n")
	if diff := cmp.Diff(want, string(environment)); err != nil || diff != "" {
		t.Errorf("its environment (%v) (-want +got):\n%s", err, diff)
	}
	content, err := os.ReadFile(filepath.Join(root, vmpb.UserDataPath))
	if err != nil || string(content) != "#guest" {
		t.Errorf("the user data are %q (%v)", content, err)
	}
	if info, err := os.Stat(filepath.Join(root, vmpb.UserDataPath)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the user data is %v (%v)", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(root, vmpb.RootDiskPath), []byte("disk"), 0o600); err != nil {
		t.Error(err)
	}
	if content, err := os.ReadFile(filepath.Join(b.config.VolumesDir, "disk", "disk.img")); err != nil || string(content) != "disk" {
		t.Errorf("the volume holds %q (%v)", content, err)
	}
	b.requireRunning(pod)
}

// requireRunning checks the status of a running Pod.
func (b *testHost) requireRunning(pod *corev1.Pod) {
	b.t.Helper()
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		ready := false
		for _, condition := range pod.Status.Conditions {
			ready = ready || condition.Type == kind && condition.Status == corev1.ConditionTrue && !condition.LastTransitionTime.IsZero()
		}
		if !ready {
			b.t.Errorf("condition %s is missing or not True", kind)
		}
	}
	container := pod.Status.ContainerStatuses[0]
	if !container.Ready || !*container.Started || container.State.Running == nil || pod.Status.PodIP != "127.0.0.1" || pod.Status.StartTime == nil {
		b.t.Errorf("the status is %+v", pod.Status)
	}
}

// claim creates a bound claim.
func (b *testHost) claim(name, dir string) string {
	b.t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.t.Fatal(err)
	}
	size := corev1.ResourceList{corev1.ResourceStorage: *quantity("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claims := b.client.CoreV1().PersistentVolumeClaims(b.Namespace)
	claim, err := claims.Create(b.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: name + "-" + b.Namespace, StorageClassName: ptr.To(""),
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	_, err = b.client.CoreV1().PersistentVolumes().Create(b.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: b.Namespace, Name: name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	claim.Status.Phase = corev1.ClaimBound
	if _, err := claims.UpdateStatus(b.t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	return name
}

func TestPod_IsDeleted(t *testing.T) {
	b := newTestHost(t)
	b.start()
	t.Run("SIGTERM", func(t *testing.T) {
		// The finalizer keeps the Pod for its final status.
		pod := b.pod("graceful", "run", func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/test"} })
		b.awaitReady("graceful")
		b.delete("graceful", metav1.DeleteOptions{})
		last := b.await("graceful", corev1.PodSucceeded)
		if got := last.Status.ContainerStatuses[0].State.Terminated.Message; !strings.Contains(got, vmpb.EndStopped) {
			t.Errorf("its termination message is %q, want reason Stopped", got)
		}
		_, err := b.client.CoreV1().Pods(b.Namespace).Patch(t.Context(), "graceful", types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b.awaitGone(pod)
	})
	t.Run("SIGKILL", func(t *testing.T) {
		pod := b.pod("deaf", "family", withGrace(1))
		pid := b.awaitReady("deaf")
		began := time.Now()
		b.delete("deaf", metav1.DeleteOptions{})
		b.awaitGone(pod)
		if took := time.Since(began); took < 900*time.Millisecond {
			t.Errorf("it was killed after %s, before its grace period", took)
		}
		requireDead(t, pid)
	})
	t.Run("by force", func(t *testing.T) {
		pod := b.pod("forced", "run")
		pid := b.awaitReady("forced")
		b.delete("forced", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		b.awaitGone(pod)
		requireDead(t, pid)
	})
	t.Run("before the start", func(t *testing.T) {
		pod := b.pod("early", "run", withSecret("never"))
		b.awaitEvent(pod, eventVolumes)
		b.delete("early", metav1.DeleteOptions{})
		b.awaitGone(pod)
	})
}

// requireDead checks that the process has exited. It may be a zombie.
func requireDead(t *testing.T, pid int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("process %d lives: %s", pid, stat)
	}
}

func withSecret(name string) func(*corev1.Pod) {
	return withVolume("secret", "/etc/secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}})
}

func TestPod_WaitsForSecret(t *testing.T) {
	b := newTestHost(t)
	b.start()
	pod := b.pod("vm", "run", withSecret("late"))
	b.awaitEvent(pod, eventVolumes)
	b.eventually("a reason to wait", func() (bool, any) {
		pod := b.await("vm", corev1.PodPending)
		statuses := pod.Status.ContainerStatuses
		return len(statuses) == 1 && statuses[0].State.Waiting != nil &&
			statuses[0].State.Waiting.Reason == waitingCreating && statuses[0].State.Waiting.Message != "", pod.Status
	})
	_, err := b.client.CoreV1().Secrets(b.Namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "late"}, Data: map[string][]byte{"a": []byte("1"), "b": []byte("2")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.awaitReady("vm")
	if content, err := os.ReadFile(filepath.Join(b.location(pod).root(), "etc/secret/b")); err != nil || string(content) != "2" {
		t.Errorf("the secret's file holds %q (%v)", content, err)
	}
}

func TestPod_UnsupportedFails(t *testing.T) {
	b := newTestHost(t)
	b.start()
	pod := b.pod("web", "run", func(pod *corev1.Pod) { pod.Spec.Containers[0].Command = []string{"nginx"} })
	refused := b.await("web", corev1.PodFailed)
	if refused.Status.Reason != ReasonUnsupported || refused.Status.Message == "" || len(refused.Status.ContainerStatuses) != 0 {
		t.Errorf("the status is %+v", refused.Status)
	}
	b.awaitEvent(pod, ReasonUnsupported)
	b.delete("web", metav1.DeleteOptions{})
	b.awaitGone(pod)
}

// TestPod_VolumeOfAnotherClaimIsRejected checks that no process starts for a claim that pretends to be bound to the volume of
// another claim, or that refers to a directory outside that of volumes.
func TestPod_VolumeOfAnotherClaimIsRejected(t *testing.T) {
	b := newTestHost(t)
	b.config.VolumesDir = t.TempDir()
	b.start()
	theirs := b.claim("theirs", filepath.Join(b.config.VolumesDir, "theirs"))
	outside := b.claim("outside", t.TempDir())
	claims := b.client.CoreV1().PersistentVolumeClaims(b.Namespace)
	claim, err := claims.Get(t.Context(), theirs, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stolen := claim.DeepCopy()
	stolen.ObjectMeta = metav1.ObjectMeta{Name: "stolen"}
	if stolen, err = claims.Create(t.Context(), stolen, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stolen.Status.Phase = corev1.ClaimBound
	if _, err := claims.UpdateStatus(t.Context(), stolen, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	using := func(claim string) func(*corev1.Pod) {
		return withVolume("disk", "/disk", corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}})
	}
	for _, name := range []string{outside, stolen.Name} {
		pod := b.pod(name, "run", using(name))
		b.awaitEvent(pod, eventVolumes)
		if statuses := b.await(name, corev1.PodPending).Status.ContainerStatuses; len(statuses) > 0 && statuses[0].State.Running != nil {
			t.Errorf("%s runs", name)
		}
	}
	b.pod("honest", "run", using(theirs))
	b.awaitReady("honest")
}

func TestHost_StopTerminatesProcesses(t *testing.T) {
	b := newTestHost(t)
	stop := b.start()
	b.pod("vm-1", "run")
	b.pod("vm-2", "run", withGrace(1))
	waiting := b.pod("vm-3", "run", withSecret("never"))
	pids := []int{b.awaitReady("vm-1"), b.awaitReady("vm-2")}
	b.awaitEvent(waiting, eventVolumes)
	b.eventually("the Node", b.nodeReady) // Pods run without the Node
	stop()
	for i, pid := range pids {
		requireDead(t, pid)
		pod := b.await(fmt.Sprintf("vm-%d", i+1), corev1.PodFailed)
		if pod.Status.Reason != ReasonHostStopped {
			t.Errorf("the reason is %q, want %q", pod.Status.Reason, ReasonHostStopped)
		}
	}
	b.await("vm-3", corev1.PodPending) // another host runner may start the Pod
	node, err := b.client.CoreV1().Nodes().Get(t.Context(), b.config.Name, metav1.GetOptions{})
	if err != nil || node.Status.Conditions[0].Status != corev1.ConditionFalse {
		t.Errorf("the Node is still ready (%v): %+v", err, node.Status.Conditions)
	}
}

// TestHost_StopRepeatsTermination checks that a slow process is signaled again when the host stops.
func TestHost_StopRepeatsTermination(t *testing.T) {
	b := newTestHost(t)
	stop := b.start()
	pod := b.pod("patient", "patient", withGrace(600))
	pid := b.awaitReady("patient")
	b.delete("patient", metav1.DeleteOptions{})
	b.awaitLog(pod, "ready\nwaiting\n") // two signals are merged if they arrive before the process runs
	began := time.Now()
	stop()
	requireDead(t, pid)
	if took := time.Since(began); took > StopGrace-5*time.Second {
		t.Errorf("it ended after %s", took)
	}
}

func TestHost_LocksDirectory(t *testing.T) {
	b := newTestHost(t)
	b.start()
	b.eventually("the Node", b.nodeReady)
	if err := Run(t.Context(), b.config); !errors.Is(err, ErrInUse) {
		t.Errorf("a second host runner gives %v, want %v", err, ErrInUse)
	}
}

func TestNode_IsIsolatedFromHosts(t *testing.T) {
	b := newTestHost(t)
	b.start()
	b.pod("vm", "run")
	b.awaitReady("vm")
	access, err := b.ControlPlane.UserConfig("system:node:another", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	another, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"status":{"phase":"Failed"}}`)
	_, err = another.CoreV1().Pods(b.Namespace).Patch(t.Context(), "vm", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if !apierrors.IsForbidden(err) {
		t.Errorf("another node's write to our Pod gives %v, want that it is forbidden", err)
	}
}
