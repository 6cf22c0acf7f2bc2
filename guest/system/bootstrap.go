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

// Bootstrap is a system whose node the commands of a #cloud-config set up, with kubeadm. All fields are
// required.
type Bootstrap struct {
	// Node is the machine.
	Node *Node
	// Config has files and commands.
	Config cloudconfig.Config
	// InstanceID is that of the machine. Files and commands are for its first boot.
	InstanceID string
}

// Files of a system that is set up by commands.
const (
	// kubeadm is the program without which there is nothing to set up with.
	kubeadm = "/usr/local/bin/kubeadm"
	// startKubelet starts the kubelet as kubeadm has configured it.
	startKubelet = "/usr/local/lib/millwright/kubelet"
	// wantedServices is the folder where systemctl says what is to run: a file for each service.
	wantedServices = "/run/millwright/services"
	// configuredKubelet is there once kubeadm has configured the kubelet.
	configuredKubelet = "/var/lib/kubelet/config.yaml"
	// begun has the ID of the instance whose commands were run.
	begun = "/var/lib/cloud/data/instance-id"
	// scripts is the folder of the commands.
	scripts = "/var/lib/cloud/instance/scripts"
	// commandLog has the output of commands, where cloud-init has it.
	commandLog = "cloud-init-output.log"
)

// What Cluster API's user data write: the file is there once kubeadm has succeeded.
const (
	clusterAPIFolder = "/run/cluster-api"
	clusterAPIDone   = clusterAPIFolder + "/bootstrap-success.complete"
)

// CanBootstrap reports whether the system has what Bootstrap needs.
func CanBootstrap() bool {
	_, err := os.Stat(kubeadm)
	return err == nil
}

// Run sets the node up, and runs the system's services until the context ends, whose error it returns. If
// the commands fail, the services run nevertheless.
func (b *Bootstrap) Run(ctx context.Context) error {
	if err := b.Node.prepare(ctx); err != nil {
		return fmt.Errorf("preparing the system: %w", err)
	}
	for _, text := range b.Config.Ignored {
		b.Node.Logf("cloud-config: %s", text)
	}
	if err := b.want("containerd"); err != nil {
		return err
	}
	go b.Node.Processes.Keep(ctx, b.wantedService("containerd", "/usr/local/bin/containerd"))
	if err := b.run(ctx, "bootcmd", b.Config.BootCommands); err != nil {
		b.Node.Logf("cloud-config: %v", err)
	}
	b.Node.importImages(ctx, "*.tar")
	if _, err := os.Stat(configuredKubelet); err == nil {
		if err := b.want("kubelet"); err != nil {
			return err
		}
	}
	go b.Node.Processes.Keep(ctx, b.wantedService("kubelet", startKubelet))
	go b.connectPods(ctx)
	if err := b.first(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// want has a service run.
func (b *Bootstrap) want(name string) error {
	return write(filepath.Join(wantedServices, name), "", 0o644)
}

// wantedService returns a service that systemctl starts and stops.
func (b *Bootstrap) wantedService(name, path string) Program {
	return Program{Args: []string{path}, Log: filepath.Join(logs, name+".log"), Wanted: filepath.Join(wantedServices, name)}
}

// first does what is done once in the life of an instance: files and commands. As with cloud-init, what
// was interrupted is not done again.
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
	failed := errors.Join(b.run(ctx, "runcmd", b.Config.Commands), unsuccessful(clusterAPIFolder, clusterAPIDone))
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

// unsuccessful returns an error if the user data are Cluster API's, which have made the folder, and the file
// that it has after a success is not there. A later command of the script may have succeeded.
func unsuccessful(folder, done string) error {
	if _, err := os.Stat(folder); err != nil {
		return nil
	}
	if _, err := os.Stat(done); err != nil {
		return fmt.Errorf("there is no %s", done)
	}
	return nil
}

// run runs a script of the user data. As with cloud-init, the commands after one that fails are run, and its
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

// writeHosts writes the file of host names, unless it has the machine's: others may have added to it.
func (n *Node) writeHosts(path string) error {
	line := fmt.Sprintf("%s %s\n", n.Links[0].Address, n.Data.NodeName)
	content, err := os.ReadFile(path)
	if err == nil && strings.Contains(string(content), line) {
		return nil
	}
	return write(path, "127.0.0.1 localhost\n::1 localhost\n"+line, 0o644)
}

// lastLines returns the last lines of a log in which there is something.
func lastLines(log string, count int) []string {
	var lines []string
	for line := range strings.SplitSeq(end(log), "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-count):]
}
