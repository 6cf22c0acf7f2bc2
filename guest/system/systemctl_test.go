package system

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSystemctl: the guest's systemctl implements what kubeadm and commands in user data use.
func TestSystemctl(t *testing.T) {
	dir, tools := t.TempDir(), t.TempDir()
	// The programs are not running, except for one that exits at the first check after it is killed.
	const pidof = "#!/bin/sh\n[ \"$1\" = containerd ] && rm \"$0.running\" 2>/dev/null && echo 999999999\n"
	if err := os.WriteFile(filepath.Join(tools, "pidof"), []byte(pidof), 0o700); err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("../kubeadm/root/usr/local/bin/systemctl")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		args   string
		status int
		output string
		runs   string // the services that are then enabled
	}{
		{args: "daemon-reload"},
		{args: "is-active kubelet", status: 3, output: "inactive"},
		{args: "status kubelet.service --no-pager", status: 3, output: "inactive"},
		{args: "is-enabled kubelet", output: "enabled"},
		{args: "enable kubelet"},
		{args: "enable --now kubelet", runs: "kubelet"},
		{args: "stop kubelet"},
		{args: "start kubelet.service containerd", runs: "containerd kubelet"},
		{args: "restart containerd", runs: "containerd kubelet"},
		{args: "is-active containerd", output: "active", runs: "containerd kubelet"},
		{args: "start sshd", status: 5, output: "Unit sshd.service could not be found.", runs: "containerd kubelet"},
		{args: "mask kubelet", status: 1, runs: "containerd kubelet"},
	} {
		if strings.HasSuffix(step.args, "containerd") {
			if err := os.WriteFile(filepath.Join(tools, "pidof.running"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		command := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", string(script), "systemctl"}, strings.Fields(step.args)...)...)
		command.Env = []string{"PATH=" + tools + ":" + os.Getenv("PATH"), "MILLWRIGHT_SERVICES=" + dir}
		output, err := command.CombinedOutput()
		status := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			status = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if status != step.status || !strings.Contains(string(output), step.output) {
			t.Errorf("systemctl %s: status %d, %q, want %d, %q", step.args, status, output, step.status, step.output)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var running []string
		for _, entry := range entries {
			running = append(running, entry.Name())
		}
		if got := strings.Join(running, " "); got != step.runs {
			t.Errorf("after systemctl %s: got enabled services %q, want %q", step.args, got, step.runs)
		}
	}
}
