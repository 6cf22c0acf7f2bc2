package hostrunner

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestFullDisk checks that a Pod waits for free disk space on its host, and reports that. A process that exits
// because the disk is full can still report why.
func TestFullDisk(t *testing.T) {
	fs := smallfs.New(t)
	b := newTestHost(t)
	t.Attr("fault", "The disk is full while a host writes a Pod's files, and while the Pod's process writes its termination message")
	b.config.Dir = fs.Dir
	b.start()
	b.eventually("the lock", func() (bool, any) { _, err := os.Stat(fs.Path("lock")); return err == nil, err })
	fs.Fill(0)
	pod := b.pod("full", "run", func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/test"} })
	b.eventually("the reason", func() (bool, any) {
		pod, err := b.client.CoreV1().Pods(b.Namespace).Get(t.Context(), "full", metav1.GetOptions{})
		if err != nil || len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Waiting == nil {
			return false, err
		}
		waiting := pod.Status.ContainerStatuses[0].State.Waiting
		return waiting.Reason == waitingStartError && strings.Contains(waiting.Message, b.location(pod).manifest()+": "+syscall.ENOSPC.Error()), waiting
	})
	b.awaitEvent(pod, eventStart)
	fs.FreeSpace()
	b.awaitReady("full")
	fs.Fill(0)
	b.delete("full", metav1.DeleteOptions{})
	last := b.await("full", corev1.PodSucceeded)
	if got := last.Status.ContainerStatuses[0].State.Terminated.Message; !strings.Contains(got, vmpb.EndStopped) {
		t.Errorf("its termination message is %q, want reason %s", got, vmpb.EndStopped)
	}
	_, err := b.client.CoreV1().Pods(b.Namespace).Patch(t.Context(), "full", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.awaitGone(pod)
	t.Attr("outcome", "The Pod waits, and its status and an event name the file; its process starts once there is free space; space for the termination message is reserved")
}

// TestPod_LogRotationOnFullDisk checks that a log that cannot be rotated is not copied partially, which would use the
// space of others.
func TestPod_LogRotationOnFullDisk(t *testing.T) {
	t.Attr("fault", "The disk is full while a host rotates the log of a hypervisor")
	g := gomega.NewWithT(t)
	fs := smallfs.New(t)
	content := strings.Repeat("line\n", os.Getpagesize())
	g.Expect(os.WriteFile(fs.Path("log"), []byte(content), 0o600)).To(gomega.Succeed())
	fs.Fill(1)
	smallfs.WantNoSpace(t, rotate(fs.Path("log"), 10_000), fs.Path("log.1"))
	fs.WantFiles(fs.Dir, "log")
	g.Expect(os.ReadFile(fs.Path("log"))).To(gomega.BeEquivalentTo(content))
	fs.FreeSpace()
	g.Expect(rotate(fs.Path("log"), 10_000)).To(gomega.Succeed())
	fs.WantFiles(fs.Dir, "log", "log.1")
	t.Attr("outcome", "Each rotation attempt, every 15 s, fails with an error that names the file; no partial copy remains; the log is rotated once there is free space")
}

// TestPod_TokenRenewalOnFullDisk checks that a token that cannot be written is kept, and is renewed when there is free
// space.
func TestPod_TokenRenewalOnFullDisk(t *testing.T) {
	fs := smallfs.New(t)
	b := newTestHost(t)
	t.Attr("fault", "The disk is full while a host renews the token of a Pod")
	clock := clocktesting.NewFakeClock(time.Now())
	b.config.Dir, b.config.Clock = fs.Dir, clock
	b.start()
	pod := b.pod("vm", "run", withVolume("token", filepath.Dir(vmpb.TokenPath), tokenVolume()))
	b.awaitStirred("vm", corev1.PodRunning)
	b.awaitReady("vm")
	path := filepath.Join(b.location(pod).root(), vmpb.TokenPath)
	first, _ := readToken(t, path)
	fs.Fill(0)
	clock.Step(9 * time.Minute) // a token is valid for ten minutes, and is renewed after eight
	b.eventually("an event about missing disk space", func() (bool, any) {
		clock.Step(10 * time.Second) // the host may have set its timer after the step
		return b.hasEvent(pod, eventVolumes, syscall.ENOSPC.Error())
	})
	if still, _ := readToken(t, path); still != first {
		t.Error("the token has changed although there is no free space")
	}
	fs.FreeSpace()
	b.eventually("another token", func() (bool, any) {
		clock.Step(10 * time.Second)
		second, _ := readToken(t, path)
		return second != first, clock.Now()
	})
	t.Attr("outcome", "The old token is kept, and an event for the Pod names the file; the token is renewed once there is free space")
}
