// Package cluster runs local clusters.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/localdir"
	managercmd "github.com/millwright-dev/millwright/internal/cli/manager"
	"github.com/millwright-dev/millwright/internal/cli/vmcontroller"
	"github.com/millwright-dev/millwright/internal/local/archives"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/network/overlap"
)

// upFlags are the flags of "millwright up".
type upFlags struct {
	managercmd.Flags

	dir      string
	binaries string
	// release has the control plane and the guests, unless flags name them. In a checkout, it is empty.
	release archives.Set
	// guest is the guest that the machines of the examples run: guestSmall or guestFull.
	guest  string
	images string
	// imageServers are servers on this machine in addition to the image server.
	imageServers string

	hosts int
	ports upPorts
	// network is the network of the guests, and podNetwork that of the Pods of full guests.
	network, podNetwork netip.Prefix
	// ipv6 gives full guests and their Pods IPv6 addresses in addition.
	ipv6 bool
	// guestPorts are ports on 127.0.0.1, in addition to the API server's, that guests may connect to.
	guestPorts []int
	// connected and outside determine whether guests can reach each other, and addresses outside their network.
	connected, outside bool
	accel              string
	migrations         vmcontroller.Migrations
	noFsync            bool
	logFile            string
}

// upPorts are ports on 127.0.0.1. 0 means a free port, which later runs reuse.
type upPorts struct {
	api, images, vms int
}

// defaultNetwork is the default network of guests. The sources of the examples contain it and the default ports.
var defaultNetwork = netip.MustParsePrefix("10.77.0.0/16")

// The default ports.
const (
	defaultAPIPort   = 16443
	defaultImagePort = 16480
)

// The guests that virtual machines may run.
const (
	guestSmall = "small"
	guestFull  = "full"
)

// The IPv6 networks of --ipv6, which are part of a private network (RFC 4193). Each node gets a /64 of the Pod
// network.
var (
	vmNetwork6  = netip.MustParsePrefix("fd6d:696c:6c77::/64")
	podNetwork6 = netip.MustParsePrefix("fd6d:696c:6c77:100::/56")
)

// guestBuilds are the directories of the guests in the build cache, and their archives.
var guestBuilds = map[string]string{guestSmall: archives.Guest, guestFull: archives.GuestFull}

// NewUp returns "millwright up".
func NewUp(release archives.Set) *cobra.Command {
	flags := &upFlags{release: release}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a local cluster whose nodes are virtual machines",
		Long: `Run a local cluster whose nodes are virtual machines.

The control plane is etcd, kube-apiserver, kube-controller-manager and kube-scheduler. The
program of a release downloads it at the first start, unless the archive is in the program's
directory; in a checkout, "make controlplane" builds it. Each host is a process that runs
hypervisor Pods as a kubelet would. Ctrl-C stops the cluster gracefully; its data stays in
the directory, and the next
"up" continues with it, also after a crash.`,
		Example: `  millwright up
  kubectl --kubeconfig .millwright/kubeconfig apply -f .millwright/examples/

  millwright up --driver sim --dir simulated
  kubectl --kubeconfig simulated/kubeconfig apply -f simulated/examples/`,
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), nil)
		},
	}
	flags.addFlags(cmd)
	return cmd
}

func (f *upFlags) addFlags(cmd *cobra.Command) {
	set := cmd.Flags()
	set.StringVar(&f.dir, "dir", localdir.Default, "directory for data, disks, kubeconfig and logs")
	_ = cmd.MarkFlagDirname("dir") // the flag exists
	set.IntVar(&f.hosts, "hosts", 2, "number of hosts for virtual machines, which share the CPUs and memory of this machine")
	set.IntVar(&f.ports.api, "api-port", defaultAPIPort, "port of the API server on 127.0.0.1; 0 for any free port")
	set.IntVar(&f.ports.images, "image-port", defaultImagePort, "port on 127.0.0.1 on which to serve the files of --images; 0 for any free port")
	set.IntVar(&f.ports.vms, "vm-port", 0, "port of the VM controller on 127.0.0.1; 0 for any free port")
	set.StringVar(&f.binaries, "binaries", "", "directory with the control plane's binaries; defaults to those of the release, or to the latest build of \"make controlplane\"")
	set.StringVar(&f.release.URL, "download-url", archives.DefaultURL, "URL of releases, or of a mirror, from which a release downloads the archives of its version")
	set.BoolVar(&f.noFsync, "unsafe-no-fsync", false, "disable fsync of etcd: faster, but may lose data if this machine crashes")
	args.Section(set, "cluster")
	set.StringVar(&f.guest, "guest", guestSmall, `guest of the virtual machines: "small", nodes without Pods, or "full", nodes with Pods, which implies --connect-guests`)
	set.StringVar(&f.images, "images", "", `directory with kernels and disk images of virtual machines; defaults to the guest of the release, or to the latest build of "make guest", or of "make guest-full" with --guest full`)
	set.StringVar(&f.imageServers, "image-servers", "", imageServersUsage+"; the server of --images is always allowed")
	set.StringVar(&f.accel, "accelerator", "auto", "accelerator of QEMU: auto, kvm or tcg")
	args.Section(set, "virtual machine")
	set.TextVar(&f.network, "vm-network", defaultNetwork, "IPv4 CIDR of the virtual machines' network; its second address forwards to the API server and the --guest-ports on 127.0.0.1")
	set.TextVar(&f.podNetwork, "pod-network", netip.MustParsePrefix("10.78.0.0/16"), "IPv4 CIDR of the Pods, from which each node gets 256 addresses; for --guest full")
	set.BoolVar(&f.ipv6, "ipv6", false, "give virtual machines and their Pods IPv6 addresses in addition; for --guest full")
	set.IntSliceVar(&f.guestPorts, "guest-ports", nil, "comma-separated TCP ports on 127.0.0.1, in addition to the API server's, that virtual machines may connect to")
	set.BoolVar(&f.connected, "connect-guests", false, "let virtual machines reach each other at the addresses of their network")
	set.BoolVar(&f.outside, "guest-outside", true, "let virtual machines connect to addresses outside their network")
	args.Section(set, "network")
	f.migrations.Add(set)
	args.Section(set, "migration")
	set.StringVar(&f.logFile, "log-file", "", `log file of the controllers, or "-" for stderr; defaults to logs/millwright.log in --dir`)
	args.Section(set, "logging")
	set.StringVar(&f.Driver.Name, "driver", localdir.DriverVM, `driver of the machines: "vm" for virtual machines, "sim" for simulated ones`)
	args.Section(set, "controller")
	f.AddTuning(set)
	// The lock of the directory excludes other managers, and does not need to expire after a kill.
	f.Config.Election.Enabled = false
	set.Lookup("leader-elect").DefValue = "false"
	f.Logging.Add(set)
}

// validate returns all problems with the flags.
func (f *upFlags) validate() error {
	var wrong args.Problems
	wrong.If(f.hosts < 0 || f.hosts > 100, "--hosts: %d is not between 0 and 100", f.hosts)
	wrong.Port("api-port", f.ports.api)
	wrong.Port("image-port", f.ports.images)
	wrong.Port("vm-port", f.ports.vms)
	_, err := image.ParseServers(f.imageServers)
	wrong.If(err != nil, "--image-servers: %v", err)
	driver, network := f.Driver.Name, f.network
	wrong.If(driver != localdir.DriverVM && driver != localdir.DriverSim, "--driver: unknown driver %q; expected vm or sim", driver)
	wrong.If(f.hosts == 0 && driver == localdir.DriverVM, "--hosts: the driver vm requires at least 1")
	wrong.Add(validateNetwork(network))
	for _, port := range f.guestPorts {
		wrong.If(port < 1 || port > 65535, "--guest-ports: %d is not a port number between 1 and 65535", port)
	}
	wrong.If(guestBuilds[f.guest] == "", "--guest: unknown guest %q; expected small or full", f.guest)
	wrong.If(f.guest == guestFull && driver != localdir.DriverVM, "--guest: the driver %s does not run guests", driver)
	if f.guest == guestFull {
		wrong.Add(f.validatePodNetwork())
	}
	wrong.If(f.ipv6 && f.guest != guestFull, "--ipv6: requires --guest full")
	wrong.If(!slices.Contains([]string{"auto", "kvm", "tcg"}, f.accel), "--accelerator: unknown accelerator %q; expected auto, kvm or tcg", f.accel)
	f.migrations.Validate(&wrong)
	wrong.Add(f.ValidateTuning())
	return wrong.Err()
}

// validateNetwork returns problems with the network of guests, regardless of this machine's networks.
func validateNetwork(guests netip.Prefix) error {
	var wrong args.Problems
	problem, services := overlap.Unusable(guests), controlplane.ServiceNetwork
	wrong.If(!guests.Addr().Is4(), "--vm-network: %s is not an IPv4 network", guests)
	wrong.If(guests.Addr().Is4() && problem != "", "--vm-network: %s", problem)
	wrong.If(guests.Overlaps(services), "--vm-network: %s overlaps the network of Services, %s", guests, services)
	return wrong.Err()
}

// validatePodNetwork returns problems with the network of Pods.
func (f *upFlags) validatePodNetwork() error {
	var wrong args.Problems
	pods := f.podNetwork
	wrong.If(!pods.Addr().Is4() || pods != pods.Masked() || pods.Bits() < 8 || pods.Bits() > 24, "--pod-network: %s is not an IPv4 network with a prefix length of 8 to 24", pods)
	wrong.If(overlap.Reserved(pods) != "", "--pod-network: %s", overlap.Reserved(pods))
	wrong.If(pods.Overlaps(f.network), "--pod-network: %s overlaps the network of the virtual machines, %s", pods, f.network)
	services := controlplane.ServiceNetwork
	wrong.If(pods.Overlaps(services), "--pod-network: %s overlaps the network of Services, %s", pods, services)
	return wrong.Err()
}

// run runs the cluster until the context is done or use returns. use, which may be nil, is called when
// everything is running.
func (f *upFlags) run(ctx context.Context, stdout, stderr io.Writer, use func(context.Context, *local) error) error {
	if err := f.validate(); err != nil {
		return args.Wrong(err)
	}
	if err := f.refuseOtherDriver(); err != nil {
		return err
	}
	if err := f.refuseTaken(overlap.Taken); err != nil {
		return err
	}
	logs, err := f.openLog(stderr)
	if err != nil {
		return err
	}
	defer logs.Close() // nothing is logged after this
	log, err := f.Logging.SetUp(logs)
	if err != nil {
		return err
	}
	f.connected = f.connected || f.guest == guestFull
	mode := &local{upFlags: f, log: log}
	if err := mode.find(ctx, stderr); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Starting a cluster in %s ...\n", f.dir)
	f.warnOfHidden(stderr, overlap.Hidden)
	begin := time.Now()
	if err := mode.start(ctx); err != nil {
		return explainCancel(ctx, explainPort(err))
	}
	if use == nil {
		use = func(ctx context.Context, mode *local) error {
			mode.greet(stdout, time.Since(begin))
			<-ctx.Done()
			return nil
		}
	}
	err = mode.run(ctx, use)
	fmt.Fprintln(stdout, "Stopping ...")
	return errors.Join(err, mode.stop(context.WithoutCancel(ctx)))
}

// flaggedNetwork is a network and the flag that sets it.
type flaggedNetwork struct {
	flag   string
	prefix netip.Prefix
}

// outsideNetworks returns the networks whose guests can reach the networks of this machine.
func (f *upFlags) outsideNetworks() []flaggedNetwork {
	switch {
	case f.Driver.Name != localdir.DriverVM || !f.outside:
		return nil
	case f.guest == guestFull:
		return []flaggedNetwork{{"vm-network", f.network}, {"pod-network", f.podNetwork}}
	}
	return []flaggedNetwork{{"vm-network", f.network}}
}

// refuseTaken returns an error if a network of guests overlaps one that this machine is connected to, which has
// its peers and often its name server. Guests could not reach these, for no obvious reason.
func (f *upFlags) refuseTaken(taken func(netip.Prefix) (string, error)) error {
	var wrong args.Problems
	for _, network := range f.outsideNetworks() {
		// Errors are ignored: the check is advisory.
		sentence, err := taken(network.prefix)
		wrong.If(err == nil && sentence != "", "--%s: %s; choose another network, or set --guest-outside=false", network.flag, sentence)
	}
	return wrong.Err()
}

// warnOfHidden reports networks behind routers that guests cannot reach because their own network has the same
// addresses. This is not an error: a VPN may route all private networks, and the guests' network exists only in
// QEMU, so nothing else is affected.
func (f *upFlags) warnOfHidden(stderr io.Writer, hidden func(netip.Prefix) (string, error)) {
	for _, network := range f.outsideNetworks() {
		// Errors are ignored: the check is advisory.
		if sentence, err := hidden(network.prefix); err == nil && sentence != "" {
			fmt.Fprintf(stderr, "Warning: --%s: %s; if guests need to reach them, choose another --%[1]s\n", network.flag, sentence)
		}
	}
}

// refuseOtherDriver returns an error if the directory has machines of another driver.
func (f *upFlags) refuseOtherDriver() error {
	made, err := localdir.Driver(f.dir)
	if err != nil || made == "" || made == f.Driver.Name {
		return err
	}
	return fmt.Errorf("--driver: the directory %s was created with the driver %s, and %s cannot continue with it; use --driver %s, or another --dir",
		f.dir, made, f.Driver.Name, made)
}

// openLog opens the log file. If another process uses the directory, this process appends a few lines to its
// log.
func (f *upFlags) openLog(stderr io.Writer) (io.WriteCloser, error) {
	path := f.logFile
	switch path {
	case "-":
		return struct {
			io.Writer
			io.Closer
		}{stderr, io.NopCloser(nil)}, nil
	case "":
		path = filepath.Join(f.dir, "logs", "millwright.log")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the directory of the log: %w; set --dir or --log-file to a writable place", err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the log: %w; set --log-file to a writable file", err)
	}
	return &logFile{File: file, stderr: stderr}, nil
}

// find finds or downloads the control plane and the guest. It returns an error if the control plane was not built.
func (m *local) find(ctx context.Context, progress io.Writer) error {
	cache, err := localdir.Cache()
	if err != nil {
		return err
	}
	m.program, err = os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find the path of this program, which hosts run: %w", err)
	}
	m.release.Directories = []string{filepath.Dir(m.program)}
	if m.binaries == "" {
		if m.release.Has(archives.ControlPlane) {
			m.binaries, err = m.release.Directory(ctx, archives.ControlPlane, cache, progress)
		} else {
			m.binaries, err = controlplane.FindBinaries(cache)
		}
		if err != nil {
			return err
		}
	}
	if m.images == "" {
		m.needsGuest = true
		if m.images, err = m.guestDirectory(ctx, cache, progress); err != nil {
			return err
		}
	}
	if m.images, err = filepath.Abs(m.images); err != nil {
		return fmt.Errorf("cannot find the directory of --images: %w", err)
	}
	return nil
}

// guestDirectory returns the directory of the guest, which may not exist. Simulated machines need none.
func (m *local) guestDirectory(ctx context.Context, cache string, progress io.Writer) (string, error) {
	name := guestBuilds[m.guest]
	if m.Driver.Name == localdir.DriverVM && m.release.Has(name) {
		return m.release.Directory(ctx, name, cache, progress)
	}
	return filepath.Join(cache, name, "current"), nil
}

// explainCancel drops errors after the user has stopped the command.
func explainCancel(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// explainPort adds to the error of a used port how to choose another one.
func explainPort(err error) error {
	var taken *controlplane.PortTakenError
	if !errors.As(err, &taken) {
		return err
	}
	return fmt.Errorf("%w; choose other ports with --api-port, --image-port and --vm-port (0 for any free port)", taken)
}
