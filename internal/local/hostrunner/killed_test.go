package hostrunner

import (
	"encoding/json"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/internal/local/directory"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/env"
)

func TestPod_ProcessOutlivesHostRunner(t *testing.T) {
	b := newTestHost(t)
	kill := b.startKillable()
	pod := b.pod("vm", "run")
	pid := b.awaitReady("vm")
	kill()
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the process is gone with its host runner: %v", err)
	}
	b.startKillable()() // killed before it can do anything
	b.start()
	b.eventually("the Node", b.nodeReady)
	after := b.pod("another", "0") // the first Pod was reconciled before
	b.await("another", corev1.PodSucceeded)
	if now := b.pid(pod); now != pid {
		t.Errorf("process %d became %d", pid, now)
	}
	b.requireRunning(b.await("vm", corev1.PodRunning))
	if log, err := os.ReadFile(b.location(pod).log()); err != nil || string(log) != "ready\n" {
		t.Errorf("it was started %q (%v), want once", log, err)
	}
	b.delete("vm", metav1.DeleteOptions{})
	b.delete("another", metav1.DeleteOptions{})
	b.awaitGone(pod)
	b.awaitGone(after)
	requireDead(t, pid)
}

func TestPod_ProcessExitsWhileHostRunnerIsDown(t *testing.T) {
	cases := map[string]struct {
		reason   string
		behave   string
		happens  func(t *testing.T, b *testHost, pod *corev1.Pod, pid int)
		phase    corev1.PodPhase
		because  string
		exitCode int32
	}{
		"it exits": {
			reason: "its termination message has the reason", behave: "run",
			happens: func(t *testing.T, b *testHost, pod *corev1.Pod, pid int) {
				signalAndWait(t, b, pod, pid, syscall.SIGTERM)
			},
			phase: corev1.PodSucceeded,
		},
		"it is killed": {
			reason: "it has no termination message", behave: "deaf",
			happens: func(t *testing.T, b *testHost, pod *corev1.Pod, pid int) {
				signalAndWait(t, b, pod, pid, syscall.SIGKILL)
			},
			phase: corev1.PodFailed, because: ReasonProcessLost, exitCode: 255,
		},
		"without its directory": {
			reason: "its directory is deleted, too", behave: "deaf",
			happens: func(t *testing.T, b *testHost, pod *corev1.Pod, pid int) {
				signalAndWait(t, b, pod, pid, syscall.SIGKILL)
				if err := os.RemoveAll(string(b.location(pod))); err != nil {
					t.Fatal(err)
				}
			},
			phase: corev1.PodFailed, because: ReasonProcessLost, exitCode: 255,
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			b := newTestHost(t)
			kill := b.startKillable()
			pod := b.pod("vm", test.behave)
			pid := b.awaitReady("vm")
			kill()
			test.happens(t, b, pod, pid)
			b.start()
			status := b.await("vm", test.phase).Status
			state := status.ContainerStatuses[0].State.Terminated
			if status.Reason != test.because || state == nil || state.ExitCode != test.exitCode {
				t.Errorf("%s: the status is %+v", test.reason, status)
			}
		})
	}
}

// signalAndWait sends a signal and waits until the process exits, while no host runner is running.
func signalAndWait(t *testing.T, b *testHost, pod *corev1.Pod, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
	b.eventually("the end of the process", func() (bool, any) {
		lock, err := os.Open(b.location(pod).path("process.lock"))
		if err != nil {
			return false, err
		}
		defer lock.Close()
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		return err == nil, err
	})
}

func TestPod_IsDeletedWhileHostRunnerIsDown(t *testing.T) {
	b := newTestHost(t)
	kill := b.startKillable()
	pod := b.pod("vm", "family", withGrace(1))
	pid := b.awaitReady("vm")
	kill()
	var zero int64
	b.delete("vm", metav1.DeleteOptions{GracePeriodSeconds: &zero})
	b.start()
	b.awaitGone(pod)
	requireDead(t, pid)
}

// TestPod_HostRunnerIsKilledDuringStart begins with the directory of a host runner that was killed while it started a Pod. The
// tests of package process cover the other states.
func TestPod_HostRunnerIsKilledDuringStart(t *testing.T) {
	t.Run("before the start", func(t *testing.T) {
		b := newTestHost(t)
		pod := b.pod("vm", "run")
		files, err := b.location(pod).create()
		if err == nil {
			err = errors.Join(files.layOut(&pod.Spec.Containers[0], map[string]string{"run": "/nowhere"}), files.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		b.start()
		b.awaitReady("vm") // the symlinks are completed
	})
	t.Run("in the start", func(t *testing.T) {
		b := newTestHost(t)
		pod := b.pod("vm", "run")
		content, err := json.Marshal(map[string]string{"began": "2026-01-02T03:04:05Z"})
		if err == nil {
			err = directory.WriteFile(b.location(pod).path("process.json"), content)
		}
		if err != nil {
			t.Fatal(err)
		}
		b.start()
		if status := b.await("vm", corev1.PodFailed).Status; status.Reason != ReasonProcessLost {
			t.Errorf("the status is %+v, want that its end is not known", status)
		}
	})
	t.Run("before the status was written", func(t *testing.T) {
		b := newTestHost(t)
		kill := b.startKillable()
		pod := b.pod("vm", "run")
		pid := b.pid(pod)
		kill()
		b.start()
		if now := b.awaitReady("vm"); now != pid {
			t.Errorf("process %d became %d", pid, now)
		}
	})
}

func tokenVolume() corev1.VolumeSource {
	seconds := int64(600) // the minimum of the API server
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
		ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Audience: vmpb.TokenAudience, ExpirationSeconds: &seconds, Path: "token",
		},
	}}}}
}

func TestHost_StopsWithoutAPIServer(t *testing.T) {
	b := newTestHost(t, env.WithOwn())
	stop := b.start()
	b.pod("vm", "run")
	pid := b.awaitReady("vm")
	if err := b.ControlPlane.StopComponent(t.Context(), "kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	stop()
	if took := time.Since(began); took > StopGrace {
		t.Errorf("it took %s to stop", took)
	}
	requireDead(t, pid)
}
