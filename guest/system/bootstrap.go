package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/guest/cloudconfig"
)

// Bootstrap is a system whose node is set up by the commands of a #cloud-config, with kubeadm. All fields are
// required.
type Bootstrap struct {
	// Node is the machine.
	Node *Node
	// Config has the files and commands.
	Config cloudconfig.Config
	// InstanceID is the instance ID of the machine. Files and commands are for its first boot.
	InstanceID string
}

// Files of a system that is set up by commands.
const (
	// kubeadm is the program that the setup requires.
	kubeadm = "/usr/local/bin/kubeadm"
	// startKubelet starts the kubelet as configured by kubeadm.
	startKubelet = "/usr/local/lib/millwright/kubelet"
	// enabledServices is the directory in which systemctl records which services must run, with one file for
	// each.
	enabledServices = "/run/millwright/services"
	// configuredKubelet exists once kubeadm has configured the kubelet.
	configuredKubelet = "/var/lib/kubelet/config.yaml"
	// begun has the ID of the instance whose commands were run.
	begun = "/var/lib/cloud/data/instance-id"
	// scripts is the directory of the commands.
	scripts = "/var/lib/cloud/instance/scripts"
	// commandLog has the output of commands, at the path that cloud-init uses.
	commandLog = "cloud-init-output.log"
)

// Files that Cluster API's user data writes: the second exists once kubeadm has succeeded.
const (
	clusterAPIDir  = "/run/cluster-api"
	clusterAPIDone = clusterAPIDir + "/bootstrap-success.complete"
)

// CanBootstrap reports whether the system has what Bootstrap needs.
func CanBootstrap() bool {
	_, err := os.Stat(kubeadm)
	return err == nil
}

// Run sets the node up, and runs the system's services until the context is done, whose error it returns. If
// the commands fail, the services run anyway.
func (b *Bootstrap) Run(ctx context.Context) error {
	if err := b.Node.prepare(ctx); err != nil {
		return fmt.Errorf("preparing the system: %w", err)
	}
	for _, text := range b.Config.Ignored {
		b.Node.Logf("cloud-config: %s", text)
	}
	if err := b.enable("containerd"); err != nil {
		return err
	}
	go b.Node.Processes.Keep(ctx, b.enabledService("containerd", "/usr/local/bin/containerd"))
	if err := b.run(ctx, "bootcmd", b.Config.BootCommands); err != nil {
		b.Node.Logf("cloud-config: %v", err)
	}
	b.Node.importImages(ctx, "*.tar")
	if _, err := os.Stat(configuredKubelet); err == nil {
		if err := b.enable("kubelet"); err != nil {
			return err
		}
	}
	go b.Node.Processes.Keep(ctx, b.enabledService("kubelet", startKubelet))
	go b.connectPods(ctx)
	if err := b.first(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// enable enables a service.
func (b *Bootstrap) enable(name string) error {
	return write(filepath.Join(enabledServices, name), "", 0o644)
}

// enabledService returns a service that systemctl starts and stops.
func (b *Bootstrap) enabledService(name, path string) Program {
	return Program{Args: []string{path}, Log: filepath.Join(logs, name+".log"), Enabled: filepath.Join(enabledServices, name)}
}

// first does what is done once per instance: files and commands. As with cloud-init, interrupted work is not
// repeated.
func (b *Bootstrap) first(ctx context.Context) error {
	known, err := os.ReadFile(begun)
	if err == nil && string(known) == b.InstanceID {
		b.Node.Logf("bootstrap: an earlier boot ran the commands")
		return nil
	}
	if err := (tree{root: "/", chown: (*os.File).Chown}).writeAll(b.Config.Files); err != nil {
		return fmt.Errorf("cloud-config: %w", err)
	}
	if err := write(begun, b.InstanceID, 0o644); err != nil {
		return err
	}
	b.Node.Logf("bootstrap: running the commands")
	began := time.Now()
	failed := errors.Join(b.run(ctx, "runcmd", b.Config.Commands), unsuccessful(clusterAPIDir, clusterAPIDone))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failed != nil {
		b.Node.Logf("bootstrap: the end of %s:", commandLog)
		for _, line := range lastLines(filepath.Join(logs, commandLog), shownLines) {
			b.Node.Logf("bootstrap: | %s", line)
		}
		b.Node.Logf("bootstrap: failed after %.0f s: %v", time.Since(began).Seconds(), strings.ReplaceAll(failed.Error(), "\n", "; "))
		return nil
	}
	b.Node.Logf("bootstrap: succeeded after %.0f s", time.Since(began).Seconds())
	return nil
}

// shownLines is how many lines of the commands' output the console shows if they fail.
const shownLines = 6

// unsuccessful returns an error if the user data is Cluster API's, which has created the directory, and the
// file for success is missing. A later command of the script may have succeeded.
func unsuccessful(dir, done string) error {
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	if _, err := os.Stat(done); err != nil {
		return fmt.Errorf("%s does not exist", done)
	}
	return nil
}

// run runs a script of the user data. As with cloud-init, commands after a failed one are run, and the exit
// status is that of the last one.
func (b *Bootstrap) run(ctx context.Context, name, commands string) error {
	if commands == "" {
		return nil
	}
	path := filepath.Join(scripts, name)
	if err := write(path, "#!/bin/sh\n"+commands, 0o700); err != nil {
		return err
	}
	return b.Node.Processes.Run(ctx, Program{
		Args: []string{"/bin/sh", path}, Env: []string{"HOME=/root", "INSTANCE_ID=" + b.InstanceID}, Log: filepath.Join(logs, commandLog),
	})
}

// writeHosts writes the file of host names, unless it already has the machine's name: others may have added to
// it.
func (n *Node) writeHosts(path string) error {
	line := fmt.Sprintf("%s %s\n", n.Links[0].Address, n.Data.NodeName)
	content, err := os.ReadFile(path)
	if err == nil && strings.Contains(string(content), line) {
		return nil
	}
	return write(path, "127.0.0.1 localhost\n::1 localhost\n"+line, 0o644)
}

// lastLines returns the last non-empty lines of a log.
func lastLines(log string, count int) []string {
	var lines []string
	for line := range strings.SplitSeq(end(log), "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-count):]
}
