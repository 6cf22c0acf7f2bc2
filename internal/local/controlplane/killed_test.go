package controlplane

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/millwright-dev/millwright/internal/local/proc"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// parentDirEnv makes the test binary start a control plane in that directory instead of running tests.
const (
	parentDirEnv        = "MILLWRIGHT_TEST_PARENT_DIR"
	parentOrphanableEnv = "MILLWRIGHT_TEST_PARENT_ORPHANABLE"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentDirEnv); dir != "" {
		os.Exit(beParent(dir))
	}
	os.Exit(m.Run())
}

// ofParent is the control plane of that process. A local variable would be garbage collected while the process
// waits, and the lock of the directory with it.
var ofParent *ControlPlane

// beParent starts a control plane, prints a line, and waits to be killed.
func beParent(dir string) int {
	var err error
	ofParent, err = Start(context.Background(), Config{
		Dir: dir, Binaries: os.Getenv("KUBERNETES_BINARIES"), UnsafeNoFsync: true,
		orphanable: os.Getenv(parentOrphanableEnv) != "",
	})
	fmt.Println("started:", err)
	if err != nil {
		return 1
	}
	select {}
}

// runParent starts another process with a control plane, and returns when the control plane is ready.
func runParent(t *testing.T, dir string, orphanable bool) *exec.Cmd {
	t.Helper()
	command := exec.Command(value[string](t)(os.Executable()))
	command.Env = append(os.Environ(), parentDirEnv+"="+dir, "KUBERNETES_BINARIES="+binaries(t))
	if orphanable {
		command.Env = append(command.Env, parentOrphanableEnv+"=yes")
	}
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() { killParent(command) })
	line := value[string](t)(bufio.NewReader(output).ReadString('\n'))
	if strings.TrimSpace(line) != "started: <nil>" {
		t.Fatalf("the other process printed %q", line)
	}
	return command
}

func killParent(command *exec.Cmd) {
	command.Process.Kill() // fails only if it has exited
	command.Wait()         // it was killed
}

// processes opens the processes of a control plane.
func processes(t *testing.T, dir layout) map[string]*os.Process {
	t.Helper()
	found := map[string]*os.Process{}
	for _, name := range []string{Etcd, APIServer, ControllerManager, Scheduler} {
		var recorded struct{ PID int }
		must(t, json.Unmarshal(value[[]byte](t)(os.ReadFile(dir.record(name))), &recorded))
		found[name] = value[*os.Process](t)(proc.Open(recorded.PID))
	}
	return found
}

func TestControlPlane_StartsAfterParentWasKilled(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, orphanable := range map[string]bool{"ChildrenEnd": false, "ChildrenStay": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			parent := runParent(t, dir, orphanable)
			old := processes(t, layout(dir))
			var log journal
			checkInUse(t, log.config(t, dir), parent.Process.Pid)
			client := clientset(t, value[*rest.Config](t)(clientcmd.BuildConfigFromFlags("", layout(dir).kubeconfig())))
			maps := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
			_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
			must(t, err)

			killParent(parent)
			if orphanable {
				checkLive(t, old, true)
			}
			startForTest(t, log.config(t, dir))
			checkLive(t, old, false)
			for name := range old {
				if orphanable && !log.contains("terminated a child", name) {
					t.Errorf("the log does not report that %s was terminated", name)
				}
			}
			_, err = maps.Get(t.Context(), "kept", metav1.GetOptions{})
			must(t, err)
		})
	}
}

func checkInUse(t *testing.T, config Config, pid int) {
	t.Helper()
	_, err := Start(t.Context(), config)
	var problem *InUseError
	if !errors.As(err, &problem) || problem.PID != pid {
		t.Fatalf("want the directory to be in use by process %d, got %v", pid, err)
	}
}

func checkLive(t *testing.T, processes map[string]*os.Process, want bool) {
	t.Helper()
	for name, process := range processes {
		if _, err := proc.Stat(process.Pid); (err == nil) != want {
			t.Errorf("%s (process %d) of the killed parent runs: %t", name, process.Pid, !want)
		}
	}
}
