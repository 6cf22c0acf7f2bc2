package hostrunner

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/local/directory"
	"github.com/millwright-dev/millwright/internal/local/process"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func TestPod_ExpandsVariables(t *testing.T) {
	known := map[string]string{"A": "1", "EMPTY": "", "CHAIN": "$(A)"}
	cases := map[string]string{
		"":                "",
		"plain":           "plain",
		"$(A):0":          "1:0",
		"$(A)$(A)":        "11",
		"[$(EMPTY)]":      "[]",
		"$(CHAIN)":        "$(A)",
		"$(UNKNOWN)":      "$(UNKNOWN)",
		"$$(A)":           "$(A)",
		"$$$(A)":          "$1",
		"$A and $":        "$A and $",
		"$(A":             "$(A",
		"costs 5$, $(A)!": "costs 5$, 1!",
	}
	for text, want := range cases {
		if got := expand(text, known); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// supported returns a Pod that uses all supported fields.
func supported() *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{
			Command: vmpb.Command(), TerminationMessagePath: vmpb.TerminationMessagePath,
			Env: []corev1.EnvVar{{Name: vmpb.EnvSpec, Value: "1"}, {Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "run", MountPath: vmpb.DirRun}, {Name: "disk", MountPath: "/var/lib/millwright"},
				{Name: "token", MountPath: "/var/run/secrets/millwright"},
			},
		}},
		Volumes: []corev1.Volume{
			{Name: "run", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "disk", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}},
			{Name: "data", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
			{Name: "token", VolumeSource: tokenVolume()},
		},
	}}
}

func TestPod_Admission(t *testing.T) {
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { change(&pod.Spec.Containers[0]) }
	}
	mount := func(path string) func(*corev1.Pod) {
		return container(func(c *corev1.Container) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: path})
		})
	}
	device := func(path string) func(*corev1.Pod) {
		return container(func(c *corev1.Container) {
			c.VolumeDevices = append(c.VolumeDevices, corev1.VolumeDevice{Name: "disk", DevicePath: path})
		})
	}
	volume := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.Volumes[0].VolumeSource = source }
	}
	cases := map[string]func(*corev1.Pod){
		"two containers":        func(pod *corev1.Pod) { pod.Spec.Containers = append(pod.Spec.Containers, pod.Spec.Containers...) },
		"init container":        func(pod *corev1.Pod) { pod.Spec.InitContainers = make([]corev1.Container, 1) },
		"restarts":              func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways },
		"deadline":              func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) },
		"other command":         container(func(c *corev1.Container) { c.Command = []string{"sh"} }),
		"other arguments":       container(func(c *corev1.Container) { c.Command = append(vmpb.DiskServerCommand(), "-x") }),
		"arguments":             container(func(c *corev1.Container) { c.Args = []string{"-x"} }),
		"probe":                 container(func(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{} }),
		"hook":                  container(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }),
		"working directory":     container(func(c *corev1.Container) { c.WorkingDir = "/" }),
		"device outside":        device("/../../dev/sda"),
		"device in a mount":     device(vmpb.DirRun + "/x"),
		"device without a path": device(""),
		"message path":          container(func(c *corev1.Container) { c.TerminationMessagePath = "/tmp/x" }),
		"envFrom":               container(func(c *corev1.Container) { c.EnvFrom = make([]corev1.EnvFromSource, 1) }),
		"secret in env": container(func(c *corev1.Container) {
			c.Env[1].ValueFrom = &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}
		}),
		"unknown field":       container(func(c *corev1.Container) { c.Env[1].ValueFrom.FieldRef.FieldPath = "spec.hostname" }),
		"relative mount":      mount("etc/x"),
		"mount of all":        mount("/x/.."),
		"mount outside":       mount("/../../x"),
		"mount with dots":     mount("/x/../y"),
		"mount in a mount":    mount(vmpb.DirRun + "/x"),
		"mount around one":    mount("/var/lib"),
		"same mount":          mount(vmpb.DirRun + "/"),
		"mount over messages": mount("/dev"),
		"subPath":             container(func(c *corev1.Container) { c.VolumeMounts[0].SubPath = "x" }),
		"config map":          volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}),
		"host path":           volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}),
		"no source":           volume(corev1.VolumeSource{}),
		"two sources":         volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}, HostPath: &corev1.HostPathVolumeSource{Path: "/"}}),
		"two of those that are supported": volume(corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{}, PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}),
		"secret leads out": volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			Items: []corev1.KeyToPath{{Key: "a", Path: "../../x"}}}}),
		"projected config map": volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{}}}}}),
		"token leads out": volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "../x"}}}}}),
	}
	for _, name := range []string{
		"PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GCONV_PATH", "QEMU_MODULE_DIR", "GODEBUG", "SSL_CERT_FILE", "HTTPS_PROXY", "TMPDIR", "HOME", "BASH_ENV",
		"path", "", " ", "A=B", vmpb.EnvRoot, vmpb.EnvCertFile, vmpb.EnvKeyFile, vmpb.EnvAuthorityFile, "X" + vmpb.EnvSpec,
	} {
		cases["variable "+name] = container(func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: "/tmp/evil"}) })
	}
	if err := admit(supported()); err != nil {
		t.Fatalf("what is supported is refused: %v", err)
	}
	inACluster := supported()
	inACluster.Spec.Containers[0].Env = append(inACluster.Spec.Containers[0].Env, corev1.EnvVar{Name: "TMPDIR", Value: vmpb.DirRun})
	if err := admit(inACluster); err != nil {
		t.Fatalf("what VM controllers in clusters ask for is refused: %v", err)
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			pod := supported()
			change(pod)
			if admit(pod) == nil {
				t.Error("it was admitted")
			}
		})
	}
}

func TestPodStatus_Final(t *testing.T) {
	type end struct {
		Phase  corev1.PodPhase
		Reason string
		Code   int32
		Signal int32
	}
	stopped := `{"reason":"Stopped","message":"x"}`
	cases := map[string]struct {
		reason  string
		exit    process.Exit
		killed  bool
		message string
		want    end
	}{
		"signal": {"a signal is a failure", process.Exit{Known: true, Code: 143, Signal: syscall.SIGTERM}, false, "",
			end{corev1.PodFailed, "", 143, 15}},
		"status before message": {"a known exit status counts", process.Exit{Known: true, Code: 1}, false, stopped,
			end{corev1.PodFailed, "", 1, 0}},
		"message of success": {"else the message counts", process.Exit{}, false, stopped,
			end{corev1.PodSucceeded, "", 0, 0}},
		"message of failure": {"else the message counts", process.Exit{}, false, `{"reason":"QEMUFailed"}`,
			end{corev1.PodFailed, "", 1, 0}},
		"our kill": {"the signal was sent by the host runner", process.Exit{}, true, "", end{corev1.PodFailed, "", 137, 0}},
		"no idea":  {"the exit status is unknown", process.Exit{}, false, "", end{corev1.PodFailed, ReasonProcessLost, 255, 0}},
		"half a message": {"an incomplete message is ignored", process.Exit{}, false, `{"reason":"Sto`,
			end{corev1.PodFailed, ReasonProcessLost, 255, 0}},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			e := conclude(test.exit, time.Now(), test.killed, test.message)
			got := end{e.phase, e.reason, e.container.ExitCode, e.container.Signal}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

func TestPodStatus_IsNotWrittenWithoutChange(t *testing.T) {
	pod := supported()
	began := time.Now().Truncate(time.Second)
	pod.Status = statusOf(pod, facts{now: began, began: began})
	patch, err := statusPatch(pod, statusOf(pod, facts{now: began.Add(time.Hour), began: began}))
	if err != nil || patch != nil {
		t.Errorf("an hour later it is written again (%v): %s", err, patch)
	}
}

func TestPodStatus_FinalIsKept(t *testing.T) {
	pod := supported()
	pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
	now := time.Now()
	for name, f := range map[string]facts{
		"running": {now: now, began: now},
		"ended":   {now: now, began: now, end: conclude(process.Exit{Known: true}, now, false, "")},
	} {
		if diff := cmp.Diff(pod.Status, statusOf(pod, f)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestPod_ActiveDeadline(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	deleted := func(in time.Duration) func(*worker) {
		return func(w *worker) { w.pod.DeletionTimestamp = &metav1.Time{Time: now.Add(in)} }
	}
	cases := map[string]struct {
		reason string
		given  func(*worker)
		want   time.Duration
	}{
		"own":       {"a Pod has its own grace period", func(*worker) {}, 60 * time.Second},
		"unknown":   {"without a Pod there is a default", func(w *worker) { w.pod, w.seen = nil, viewGone }, defaultGrace},
		"requested": {"a deletion brings its own", deleted(7 * time.Second), 7 * time.Second},
		"passed":    {"SIGTERM comes first", deleted(-time.Hour), time.Second},
		"asked": {"but once only", func(w *worker) {
			deleted(-time.Hour)(w)
			w.stop = &stop{began: now.Add(-time.Minute)}
		}, -59 * time.Second},
		"asked a moment ago": {"and then it has that second, whatever changes", func(w *worker) {
			deleted(-time.Hour)(w)
			w.stop = &stop{began: now.Add(-300 * time.Millisecond)}
		}, 700 * time.Millisecond},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			pod := supported()
			pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](60)
			w := &worker{host: &host{stopping: t.Context()}, pod: pod, seen: viewLive}
			test.given(w)
			if got := w.deadline(now).Sub(now); got != test.want {
				t.Errorf("%s: got %s, want %s", test.reason, got, test.want)
			}
		})
	}
}

func TestPod_TerminationMessage(t *testing.T) {
	cases := map[string]struct{ content, want string }{
		"text":   {"as it is", "as it is"},
		"binary": {"\xff!", "?!"},
		"long":   {strings.Repeat("x", maxMessage+1), strings.Repeat("x", maxMessage)},
		"empty":  {"", ""},
	}
	for name, test := range cases {
		f := podDir(t.TempDir())
		if err := directory.WriteFile(filepath.Join(f.root(), vmpb.TerminationMessagePath), []byte(test.content)); err != nil {
			t.Fatal(err)
		}
		if got := readMessage(f); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	if got := readMessage(podDir(t.TempDir())); got != "" {
		t.Errorf("without a message, got %q", got)
	}
}

func TestPod_LogRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := rotate(path, 10); err != nil {
		t.Errorf("without a log: %v", err)
	}
	// The process always writes through the same file descriptor.
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for _, step := range []struct{ write, current, old string }{
		{"0123456789", "0123456789", ""},
		{"abc", "", "3456789abc"}, // over the limit
		{"def", "def", "3456789abc"},
		{strings.Repeat("y", 30), "", strings.Repeat("y", 10)},
	} {
		if _, err := log.WriteString(step.write); err != nil {
			t.Fatal(err)
		}
		if err := rotate(path, 10); err != nil {
			t.Fatal(err)
		}
		current, err := os.ReadFile(path)
		old, _ := os.ReadFile(path + ".1") // does not exist at first
		if err != nil || string(current) != step.current || !bytes.Equal(old, []byte(step.old)) {
			t.Errorf("after %q there are %q and %q (%v), want %q and %q", step.write, current, old, err, step.current, step.old)
		}
	}
}
