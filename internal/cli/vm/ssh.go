package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
)

// sshCommand runs a program of OpenSSH, which connects through this program.
type sshCommand struct {
	kubeconfig.Flags

	identity string
	options  []string
	port     int
}

func newSSH() *cobra.Command {
	s := &sshCommand{}
	cmd := &cobra.Command{
		Use:   "ssh [flags] [USER@]NAME [-- COMMAND...]",
		Short: "Connect to a virtual machine with ssh",
		Long: `Connect to a virtual machine with ssh, through the API server. No route to the virtual machine is needed.
The ssh client of OpenSSH must be installed, and the guest must run an SSH server.

The guest's host key is accepted at the first connection, and stored for the UID of the virtual
machine. Later connections check it, and a new virtual machine with the same name has another
one. In ~/.ssh/config, the host is NAME.NAMESPACE.vm. The exit status is that of ssh.`,
		Example: `  millwright vm ssh admin@worker-1
  millwright vm ssh admin@worker-1 -i ~/.ssh/id_ed25519 -- uptime
  millwright vm ssh worker-1 --ssh-option LogLevel=DEBUG`,
		Args: func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 || cmd.ArgsLenAtDash() == 0 {
				return args.Wrongf("expected the name of a virtual machine, as [USER@]NAME")
			}
			if len(given) > 1 && cmd.ArgsLenAtDash() != 1 {
				return args.Wrongf("unexpected argument %q; expected -- before a command for the virtual machine", given[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			at, err := parseLogin(given[0])
			if err != nil {
				return err
			}
			host, options, err := s.prepare(cmd.Context(), at)
			if err != nil {
				return err
			}
			return run(cmd, "ssh", append(append(options, "--", host), given[1:]...))
		},
	}
	s.add(cmd)
	cmd.ValidArgsFunction = s.completeLogin("")
	return cmd
}

func newSCP() *cobra.Command {
	s, recursive := &sshCommand{}, false
	cmd := &cobra.Command{
		Use:   "scp SOURCE... TARGET",
		Short: "Copy files to or from a virtual machine with scp",
		Long: `Copy files to or from a virtual machine with scp, through the API server. A path on the virtual machine is
[USER@]NAME:PATH. A local path that contains a colon begins with "./" or "/".

The connection and host keys are those of "millwright vm ssh". The exit status is that of scp.`,
		Example: `  millwright vm scp app.conf admin@worker-1:/etc/app.conf
  millwright vm scp -r admin@worker-1:/var/log/app ./logs`,
		Args: func(_ *cobra.Command, given []string) error {
			if len(given) < 2 {
				return args.Wrongf("expected at least one SOURCE, and a TARGET")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			at, err := remoteOf(given)
			if err != nil {
				return err
			}
			host, options, err := s.prepare(cmd.Context(), at)
			if err != nil {
				return err
			}
			if recursive {
				options = append(options, "-r")
			}
			options = append(options, "--")
			for _, path := range given {
				if _, remote, is := cutRemote(path); is {
					path = host + ":" + remote
				}
				options = append(options, path)
			}
			return run(cmd, "scp", options)
		},
	}
	s.add(cmd)
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy directories with their content")
	cmd.ValidArgsFunction = s.completeLogin(":")
	return cmd
}

func (s *sshCommand) add(cmd *cobra.Command) {
	s.Flags.Add(cmd, virtualMachines)
	cmd.Flags().StringVarP(&s.identity, "identity-file", "i", "", "file with the private key; by default, ssh selects keys")
	cmd.Flags().StringArrayVar(&s.options, "ssh-option", nil, "option of ssh_config, as KEY=VALUE; can be repeated, and takes precedence over those of this command")
	cmd.Flags().IntVarP(&s.port, "port", "p", 22, "port of the SSH server in the guest")
}

// login is a user of a virtual machine. If the user is empty, ssh selects one.
type login struct{ user, vm string }

// parseLogin reads [USER@]NAME.
func parseLogin(text string) (login, error) {
	user, name, has := strings.Cut(text, "@")
	if !has {
		user, name = "", text
	}
	if name == "" || has && !validUser.MatchString(user) {
		return login{}, args.Wrongf("invalid virtual machine %q; expected [USER@]NAME", text)
	}
	return login{user, name}, nil
}

// validUser matches names of users that ssh reads as such in an option.
var validUser = regexp.MustCompile(`^[\pL\pN_.][\pL\pN_.+\\$-]*$`)

// cutRemote separates [USER@]NAME:PATH. As for scp, a path with a slash before the first colon is local.
func cutRemote(path string) (at, remote string, is bool) {
	at, remote, is = strings.Cut(path, ":")
	return at, remote, is && at != "" && !strings.Contains(at, "/")
}

// remoteOf returns the virtual machine that the paths of scp name.
func remoteOf(paths []string) (login, error) {
	var found login
	last := len(paths) - 1
	for i, path := range paths {
		at, _, is := cutRemote(path)
		if !is {
			if i < last && found != (login{}) {
				return login{}, args.Wrongf("%s: all sources must be on the same side", path)
			}
			continue
		}
		next, err := parseLogin(at)
		switch {
		case err != nil:
			return login{}, err
		case i == last && found != (login{}):
			return login{}, args.Wrongf("%s: copying from one virtual machine to another is not supported; copy to this machine first", path)
		case i > 0 && i < last && found != next:
			return login{}, args.Wrongf("%s: all sources must be on the same side, with the same user", path)
		}
		found = next
	}
	if found == (login{}) {
		return login{}, args.Wrongf("no path is on a virtual machine; expected a SOURCE or the TARGET as [USER@]NAME:PATH")
	}
	return found, nil
}

// prepare returns the name of the host for ssh, and the options with which ssh connects to it.
func (s *sshCommand) prepare(ctx context.Context, at login) (host string, options []string, err error) {
	const maxPort = 1<<16 - 1
	if s.port < 1 || s.port > maxPort {
		return "", nil, args.Wrongf("--port: %d is not a port number between 1 and %d", s.port, maxPort)
	}
	c, err := s.Client()
	if err != nil {
		return "", nil, err
	}
	vm, err := (&migrate{client: c, key: client.ObjectKey{Namespace: s.Namespace, Name: at.vm}}).get(ctx)
	if err != nil {
		return "", nil, s.ExplainStopped(err)
	}
	if vm.Status.ActivePodUID == "" {
		return "", nil, fmt.Errorf("virtual machine %s is not running (%s)", vm.Name, State(vm))
	}
	proxy, err := s.proxyCommand(vm)
	if err != nil {
		return "", nil, err
	}
	keys, err := knownHosts()
	if err != nil {
		return "", nil, err
	}
	// ssh uses the first value of each option.
	for _, option := range s.options {
		options = append(options, "-o", option)
	}
	options = append(options, "-o", "ProxyCommand="+proxy,
		"-o", "HostKeyAlias="+hostKeyAlias(vm.UID), "-o", "UserKnownHostsFile="+keys,
		// The API server and the hypervisor have authenticated the virtual machine.
		"-o", "StrictHostKeyChecking=accept-new", "-o", "HashKnownHosts=no")
	if at.user != "" {
		options = append(options, "-o", "User="+at.user)
	}
	if s.identity != "" {
		options = append(options, "-i", s.identity)
	}
	return vm.Name + "." + vm.Namespace + ".vm", options, nil
}

// hostKeyAlias returns the name under which the host key of a VM is stored.
func hostKeyAlias(uid types.UID) string { return "millwright-vm-" + string(uid) }

// proxyCommand returns the command by which ssh connects, for a shell and with the percent signs of ssh.
func (s *sshCommand) proxyCommand(vm *vmv1alpha1.VirtualMachine) (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find the path of this program: %w", err)
	}
	command := []string{program, "vm", "port-forward", "--stdio", "--namespace", vm.Namespace}
	for _, flag := range []struct{ name, value string }{{"--dir", s.Dir}, {"--kubeconfig", s.File}, {"--context", s.Context}} {
		if flag.value != "" {
			command = append(command, flag.name, flag.value)
		}
	}
	command = append(command, vm.Name, strconv.Itoa(s.port))
	for i := range command {
		command[i] = strings.ReplaceAll(quote(command[i]), "%", "%%")
	}
	return strings.Join(command, " "), nil
}

// plainArgument matches arguments without a special meaning for shells.
var plainArgument = regexp.MustCompile(`^[A-Za-z0-9_./:@=,+-]+$`)

// quote returns an argument for a shell.
func quote(argument string) string {
	if plainArgument.MatchString(argument) {
		return argument
	}
	return "'" + strings.ReplaceAll(argument, "'", `'\''`) + "'"
}

// knownHosts returns the file with the host keys of VMs, as an option's value, and creates its directory. It is not the
// user's own file: names there are those of real hosts.
func knownHosts() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("cannot find the directory for host keys: %w; set HOME", err)
	}
	dir = filepath.Join(dir, "millwright")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot create the directory for host keys: %w", err)
	}
	return `"` + strings.ReplaceAll(filepath.Join(dir, "vm_known_hosts"), "%", "%%") + `"`, nil
}

// completeLogin completes [USER@]NAME and adds a suffix.
func (s *sshCommand) completeLogin(suffix string) cobra.CompletionFunc {
	names := s.CompleteName(vmKind)
	return func(cmd *cobra.Command, given []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if suffix == ":" {
			given = nil // each path may be on the virtual machine
		}
		user := ""
		if at := strings.Index(typed, "@"); at >= 0 {
			user = typed[:at+1]
		}
		all, directive := names(cmd, given, typed)
		for i := range all {
			all[i] = user + all[i] + suffix
		}
		if suffix != "" {
			directive = cobra.ShellCompDirectiveNoSpace // files are completed, too
		}
		return all, directive
	}
}

// run runs a program of OpenSSH with the terminal of this one. The error is its exit status, about which it has printed
// a message.
func run(cmd *cobra.Command, program string, arguments []string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf(`cannot find %s: %w; install the OpenSSH client, or connect another one with "millwright vm port-forward"`, program, err)
	}
	command := exec.CommandContext(cmd.Context(), path, arguments...)
	// Ctrl-C signals both programs. Only a signal for this one needs to be passed on.
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.Stdin = os.Stdin
	command.Stdout, command.Stderr = terminal.Raw(cmd.OutOrStdout()), terminal.Raw(cmd.ErrOrStderr())
	err = command.Run()
	if exit, is := errors.AsType[*exec.ExitError](err); is && exit.Exited() {
		return args.ExitStatus(exit.ExitCode())
	}
	if err != nil {
		return fmt.Errorf("cannot run %s: %w", program, err)
	}
	return nil
}
