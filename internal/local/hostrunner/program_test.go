package hostrunner

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestMain makes the test binary also the program of the Pods, and a host runner that can be killed.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "hypervisor":
		beHypervisor(os.Getenv(behavior))
	case os.Getenv(hostVariable) != "":
		beHost(os.Getenv(hostVariable))
	default:
		env.Main(m)
	}
}

const (
	// behavior selects what beHypervisor does; message is its termination message.
	behavior = "MILLWRIGHT_VM_TEST_BEHAVIOR"
	message  = "MILLWRIGHT_VM_TEST_MESSAGE"
	// hostVariable makes the test binary run as a host runner.
	hostVariable = "TEST_HOST"
)

// beHypervisor does one of:
//
//	run     run until SIGTERM, then end with a termination message and status 0
//	patient the same, but at the second SIGTERM
//	deaf    run until SIGKILL
//	family  the same, with a child in another process group
//	N       end at once with status N
//	link T  replace the termination message by a link to T, and end with status 1
//	pipe    replace it by a pipe that nobody writes to, and end with status 1
func beHypervisor(what string) {
	environment := strings.Join(os.Environ(), "\n")
	must(os.WriteFile(inRoot(vmpb.DirRun, "env"), []byte(environment), 0o600))
	terminated := make(chan os.Signal, 2)
	signal.Notify(terminated, syscall.SIGTERM)
	if target, isLink := strings.CutPrefix(what, "link "); isLink || what == "pipe" {
		must(os.Remove(inRoot(vmpb.TerminationMessagePath)))
		if isLink {
			must(os.Symlink(target, inRoot(vmpb.TerminationMessagePath)))
		} else {
			must(syscall.Mkfifo(inRoot(vmpb.TerminationMessagePath), 0o600))
		}
		os.Exit(1)
	}
	switch what {
	case "run", "patient":
		fmt.Println("ready")
		<-terminated
		if what == "patient" {
			fmt.Println("waiting")
			<-terminated
		}
		writeTermination(vmpb.EndStopped)
		os.Exit(0)
	case "family":
		child := exec.Command(os.Args[0], "hypervisor")
		child.Env = append(os.Environ(), behavior+"=deaf")
		child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		child.Stdout = os.Stdout
		must(child.Start())
		time.Sleep(time.Hour)
	case "deaf":
		fmt.Println("ready")
		time.Sleep(time.Hour)
	default:
		code, err := strconv.Atoi(what)
		must(err)
		if text := os.Getenv(message); text != "" {
			must(os.WriteFile(inRoot(vmpb.TerminationMessagePath), []byte(text), 0o600))
		}
		os.Exit(code)
	}
}

func inRoot(path ...string) string {
	return filepath.Join(append([]string{os.Getenv(vmpb.EnvRoot)}, path...)...)
}

func writeTermination(reason string) {
	content, err := json.Marshal(vmpb.Termination{Reason: reason, Message: "on request"})
	must(err)
	file, err := os.OpenFile(inRoot(vmpb.TerminationMessagePath), os.O_WRONLY, 0) // replaces the file, as hypervisors do
	must(err)
	_, err = file.Write(content)
	must(err)
}

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(99)
	}
}

// hostDescription configures a host runner in another process.
type hostDescription struct{ Name, Dir, Kubeconfig, Program string }

func beHost(description string) {
	var d hostDescription
	must(json.Unmarshal([]byte(description), &d))
	access, err := clientcmd.BuildConfigFromFlags("", d.Kubeconfig)
	must(err)
	must(Run(context.Background(), Config{Name: d.Name, Dir: d.Dir, REST: access, Program: d.Program}))
}
