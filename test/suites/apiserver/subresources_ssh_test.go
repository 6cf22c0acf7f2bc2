package apiserver

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/program"
)

// forwarder returns the kubeconfig of a user with permission to forward ports.
func (w *world) forwarder(name string) string {
	w.t.Helper()
	access := w.user(name, on("portforward", "get"),
		rbacv1.PolicyRule{APIGroups: []string{"vm.metropolis.monogon.dev"}, Resources: []string{"virtualmachines"}, Verbs: []string{"get", "list"}})
	w.eventually("the user gets ports", func() bool {
		code, _ := w.do(access, http.MethodGet, w.path("web", "portforward")+"?port=80&dryRun=All", "")
		return code == http.StatusOK
	})
	return w.kubeconfig(access)
}

// portForward checks the command of that name: several ports, several connections, a program that does not listen, and
// the end by a signal.
func (w *world) portForward() {
	w.program(80, func(conn *net.TCPConn) {
		request, _ := io.ReadAll(conn)
		_, _ = conn.Write(append([]byte("you sent "), request...))
	})
	file := w.forwarder("forwarder")
	out := &program.Output{}
	command := program.Command(w.t.Context(), "vm", "port-forward", "web", ":80", ":81", "--kubeconfig", file, "-n", w.Namespace)
	command.Stdout, command.Stderr = out, out
	w.must(command.Start())
	ports := map[string]string{}
	w.eventually("the ports are forwarded", func() bool {
		for line := range strings.SplitSeq(out.String(), "\n") {
			if from, to, is := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " -> "); is && strings.HasPrefix(from, "127.0.0.1:") {
				ports[to] = from
			}
		}
		return len(ports) == 2
	})
	for _, request := range []string{"one", "two"} {
		if got := w.exchange(ports["80"], request); got != "you sent "+request {
			w.t.Errorf("got %q", got)
		}
	}
	if got := w.exchange(ports["81"], "three"); got != "" {
		w.t.Errorf("a port without a program: %q", got)
	}
	_, local, _ := net.SplitHostPort(ports["80"])
	w.eventually("each connection and the failure are reported", func() bool {
		return strings.Count(out.String(), "Handling connection for "+local+"\n") == 2 &&
			strings.Contains(out.String(), "-> 81: cannot connect to port 81 of the guest: connection was refused")
	})
	w.must(command.Process.Signal(os.Interrupt))
	if err := command.Wait(); err != nil {
		w.t.Errorf("after Ctrl-C: %v\n%s", err, out)
	}
	stdio := program.Command(w.t.Context(), "vm", "port-forward", "--stdio", "web", "80", "--kubeconfig", file, "-n", w.Namespace)
	stdio.Stdin = strings.NewReader("input")
	if got, err := stdio.Output(); err != nil || string(got) != "you sent input" {
		w.t.Errorf("--stdio: %q, %v", got, err)
	}
}

// exchange sends a request, closes this side, and returns the response.
func (w *world) exchange(address, request string) string {
	w.t.Helper()
	conn, err := net.Dial("tcp", address)
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(waitTimeout)))
	_, err = io.WriteString(conn, request)
	w.must(err)
	w.must(conn.(*net.TCPConn).CloseWrite())
	response, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "reset") {
		w.t.Error(err)
	}
	return string(response)
}

// secureShell checks "vm ssh" with the client of OpenSSH: the command and its exit status, a host key that has changed,
// and the host key of a new VM with the same name.
func (w *world) secureShell() {
	if _, err := exec.LookPath("ssh"); err != nil {
		w.t.Skipf("the client of OpenSSH is not installed: %v", err)
	}
	file, home := w.forwarder("shell"), w.t.TempDir()
	run := func(args ...string) (string, int) { return w.ssh(file, home, args...) }
	w.program(22, w.sshServer())
	for range 2 { // the second time, the host key is known
		if out, code := run("admin@web", "--", "greet", "the world"); code != 7 || !strings.Contains(out, "admin ran greet the world\n") {
			w.t.Errorf("exit status %d:\n%s", code, out)
		}
	}
	w.program(22, w.sshServer())
	if out, code := run("admin@web", "--", "greet"); code != 255 || !strings.Contains(out, "HOST IDENTIFICATION HAS CHANGED") || strings.Contains(out, "ran greet") {
		w.t.Errorf("a changed host key: exit status %d:\n%s", code, out)
	}
	w.recreate()
	if out, code := run("admin@web", "--ssh-option", "LogLevel=ERROR", "--", "greet"); code != 7 || out != "admin ran greet\n" {
		w.t.Errorf("a new VM: exit status %d:\n%s", code, out)
	}
	keys, err := os.ReadFile(filepath.Join(home, "my config", "millwright", "vm_known_hosts"))
	if err != nil || strings.Count(string(keys), "\n") != 2 || !strings.Contains(string(keys), "millwright-vm-"+string(w.vm.UID)) {
		w.t.Errorf("host keys %q, %v", keys, err)
	}
	if out, code := run("admin@web", "-p", "23"); code != 255 || !strings.Contains(out, "cannot connect to port 23 of the guest") {
		w.t.Errorf("a port without a program: exit status %d:\n%s", code, out)
	}
}

// ssh runs "vm ssh" with a kubeconfig and a home directory, and returns its output and exit status.
func (w *world) ssh(kubeconfig, home string, args ...string) (string, int) {
	w.t.Helper()
	command := program.Command(w.t.Context(), append([]string{"vm", "ssh", "--kubeconfig", kubeconfig, "-n", w.Namespace}, args...)...)
	command.Env = append(command.Env, "HOME="+home, "XDG_CONFIG_HOME="+filepath.Join(home, "my config"), "SSH_AUTH_SOCK=")
	out, err := command.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		w.t.Fatal(err)
	}
	return string(out), command.ProcessState.ExitCode()
}

// recreate replaces the VM by another one with the same name.
func (w *world) recreate() {
	w.t.Helper()
	w.must(w.client.Delete(w.t.Context(), w.vm))
	w.eventually("the VM is gone", func() bool {
		return client.IgnoreNotFound(w.client.Get(w.t.Context(), client.ObjectKeyFromObject(w.vm), &vmv1alpha1.VirtualMachine{})) == nil &&
			w.client.Get(w.t.Context(), client.ObjectKeyFromObject(w.vm), &vmv1alpha1.VirtualMachine{}) != nil
	})
	w.createVM()
}

// sshServer returns an SSH server with a new host key. It accepts all users without authentication. A command prints
// itself, and exits with 7.
func (w *world) sshServer() func(*net.TCPConn) {
	w.t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	w.must(err)
	signer, err := ssh.NewSignerFromKey(key)
	w.must(err)
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	return func(conn *net.TCPConn) {
		server, channels, requests, err := ssh.NewServerConn(conn, config)
		if err != nil {
			return // the client does not accept the host key
		}
		go ssh.DiscardRequests(requests)
		for channel := range channels {
			session, requests, err := channel.Accept()
			if err != nil {
				return
			}
			go serveSession(server.User(), session, requests)
		}
	}
}

func serveSession(user string, session ssh.Channel, requests <-chan *ssh.Request) {
	defer session.Close()
	for request := range requests {
		if request.Type != "exec" {
			_ = request.Reply(false, nil)
			continue
		}
		command := struct{ Text string }{}
		_ = request.Reply(ssh.Unmarshal(request.Payload, &command) == nil, nil)
		fmt.Fprintf(session, "%s ran %s\n", user, command.Text)
		_, _ = session.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{7}))
		return
	}
}
