//go:build linux

package vm

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/ports"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/watchdog"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/network/overlap"
	"github.com/millwright-dev/millwright/internal/vm/network/overlay"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// NewHypervisor returns the command of the Pods that the VM controller creates.
func NewHypervisor() *cobra.Command {
	command := &cobra.Command{
		Use:   "hypervisor",
		Short: "Run the virtual machine that the environment describes",
		Long: `Run the virtual machine that the environment variable ` + vmpb.EnvSpec + ` describes.

The VM controller creates Pods that run this command. It is not meant to be run by
hand.`,
		Hidden: true,
		Args:   args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runHypervisor(cmd.Context(), os.Getenv, cmd.ErrOrStderr())
		},
	}
	command.AddCommand(&cobra.Command{
		Use:    watchdogCommand,
		Short:  "Kill the parent process when its lease expires",
		Hidden: true,
		Args:   args.None,
		RunE:   func(*cobra.Command, []string) error { return watchdog.Main() },
	})
	return command
}

// watchdogCommand is the command that a hypervisor with full leases starts.
const watchdogCommand = "watchdog"

func startWatchdog() (hypervisor.Watchdog, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot start the watchdog: %w", err)
	}
	// The program's name is not used: it may be one of MCM's.
	dog, err := watchdog.Start(exec.Command(program, "hypervisor", watchdogCommand))
	if err != nil {
		return nil, err // not an interface that holds a nil pointer
	}
	return dog, nil
}

// endedError is the failure of a hypervisor.
type endedError struct{ vmpb.Termination }

// Error implements error.
func (e *endedError) Error() string { return e.Reason + ": " + e.Message }

// runHypervisor runs a VM until it terminates, and writes the reason to the termination message.
func runHypervisor(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	// The first signal cancels the context; a second one would terminate the process.
	secondSIGTERM, rest := hypervisor.SecondSIGTERM()
	defer rest()
	end := vmpb.Termination{Reason: vmpb.EndInvalidSpec}
	config, err := hypervisorConfig(getenv, log)
	if err == nil {
		config.SecondSIGTERM = secondSIGTERM
		warnOfHidden(config, overlap.Hidden)
		end = hypervisor.Run(ctx, config)
	} else {
		end.Message = err.Error()
	}
	return leave("hypervisor", getenv, log, end)
}

// leave writes why the process of a Pod exits to the termination message.
func leave(what string, getenv func(string) string, log *slog.Logger, end vmpb.Termination) error {
	code, err := hypervisor.WriteTermination(filepath.Join(getenv(vmpb.EnvRoot), vmpb.TerminationMessagePath), end)
	if err != nil {
		log.Warn("writing the termination message failed", "error", err)
	}
	log.Info(what+" exited", "reason", end.Reason, "message", end.Message)
	if code != 0 {
		return &endedError{end}
	}
	return nil
}

// warnOfHidden logs networks of the Pod that the guest cannot reach because its own network has the same
// addresses.
func warnOfHidden(config hypervisor.Config, hidden func(netip.Prefix) (string, error)) {
	if config.NoOutside {
		return // it cannot reach any of them anyway
	}
	for _, network := range config.Network {
		switch sentence, err := hidden(network); {
		case err != nil:
			config.Log.Debug("cannot determine whether the guest's network hides others", "error", err)
		case sentence != "":
			config.Log.Warn("the guest's network hides others", "why", sentence)
		}
	}
}

// hypervisorConfig reads the environment.
func hypervisorConfig(getenv func(string) string, log *slog.Logger) (hypervisor.Config, error) {
	spec, err := vmspec.Parse(getenv(vmpb.EnvSpec))
	if err != nil {
		return hypervisor.Config{}, fmt.Errorf("%s: %w", vmpb.EnvSpec, err)
	}
	log = log.With("pod", spec.GetPodName())
	config, err := networkConfig(getenv)
	if err != nil {
		return hypervisor.Config{}, err
	}
	bandwidth, err := parseBandwidth(getenv(vmpb.EnvMigrationBandwidth))
	if err != nil {
		return hypervisor.Config{}, fmt.Errorf("%s: %w", vmpb.EnvMigrationBandwidth, err)
	}
	files, err := imagesFrom(getenv)
	if err != nil {
		return hypervisor.Config{}, err
	}
	credentials, err := credentialsFor(spec, getenv, log)
	if err != nil {
		return hypervisor.Config{}, err
	}
	siblings := identity.Siblings{Credentials: credentials, Namespace: spec.GetNamespace(), VM: spec.GetName()}
	config.Spec, config.Paths, config.Log = spec, hypervisor.PathsFor(spec, getenv(vmpb.EnvRoot)), log
	config.Machines = hypervisor.QEMU{Override: getenv(vmpb.EnvAccelerator)}
	config.WriteDisk, config.Fetch = files.WriteDisk, files.Fetch
	config.Connect = func(target string) (*grpc.ClientConn, error) {
		return credentials.Dial(target, identity.Controller(), controller.DialOptions()...)
	}
	config.Follow, config.IdentityError = credentials.FollowAuthorities, credentials.Err
	config.Peers = service.Peers{
		Listen:    cmp.Or(getenv(vmpb.EnvListen), "[::]:0"),
		Options:   credentials.ServerOptions(identity.Only(func(peer identity.Peer) bool { return peer.IsController() || isSibling(peer, spec) }), connlimit.Credentials),
		Authorize: peerMayCall(spec),
	}
	config.Migration = &hypervisor.Migration{Siblings: siblings, Bandwidth: bandwidth}
	config.DiskServer, config.Watchdog = siblings.Connect, startWatchdog
	return config, nil
}

// networkConfig returns the part of the configuration that describes the network of the guest.
func networkConfig(getenv func(string) string) (config hypervisor.Config, err error) {
	if config.Network, err = parsePrefixes(getenv(vmpb.EnvUserNetwork)); err != nil {
		return config, fmt.Errorf("%s: %w", vmpb.EnvUserNetwork, err)
	}
	if config.HostPorts, err = parsePorts(getenv(vmpb.EnvHostPorts)); err != nil {
		return config, fmt.Errorf("%s: %w", vmpb.EnvHostPorts, err)
	}
	outside := getenv(vmpb.EnvOutside)
	if outside != "" && outside != vmpb.OutsideRefused {
		return config, fmt.Errorf("%s: unknown value %q; expected %s or an empty value", vmpb.EnvOutside, outside, vmpb.OutsideRefused)
	}
	config.Switch, config.NoOutside = getenv(vmpb.EnvSwitch), outside == vmpb.OutsideRefused
	if config.Overlay, err = parseOverlay(getenv(vmpb.EnvOverlay), getenv(vmpb.EnvOverlayMTU)); err != nil {
		return config, err
	}
	config.Ports, err = parseExposed(getenv(vmpb.EnvPorts), getenv(vmpb.EnvUDPPorts), getenv(vmpb.EnvProbe))
	return config, err
}

// isSibling reports whether a peer is a hypervisor of the same VM.
func isSibling(peer identity.Peer, spec *vmpb.VMSpec) bool {
	return peer.Namespace == spec.GetNamespace() && peer.VM == spec.GetName()
}

// credentialsFor returns the credentials from files that others issue, or those that the controller issues.
func credentialsFor(spec *vmpb.VMSpec, getenv func(string) string, log *slog.Logger) (*identity.Credentials, error) {
	root := getenv(vmpb.EnvRoot)
	path := func(env string) string {
		if name := getenv(env); name != "" {
			return filepath.Join(root, name)
		}
		return ""
	}
	files := identity.Files{
		Certificate: path(vmpb.EnvCertFile), Key: path(vmpb.EnvKeyFile), Authority: path(vmpb.EnvAuthorityFile),
	}
	if files.None() {
		credentials, err := identity.ForHypervisor(identity.Options{
			Authority: []byte(getenv(vmpb.EnvAuthority)), TokenFile: filepath.Join(root, vmpb.TokenPath),
			Endpoint: spec.GetControllerEndpoint(), Log: log,
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", vmpb.EnvAuthority, err)
		}
		return credentials, nil
	}
	if !files.Complete() {
		return nil, fmt.Errorf("%s, %s, %s: set all or none", vmpb.EnvCertFile, vmpb.EnvKeyFile, vmpb.EnvAuthorityFile)
	}
	pod, err := hypervisor.PodName(spec)
	if err != nil {
		return nil, err
	}
	self := identity.Peer{Namespace: spec.GetNamespace(), VM: spec.GetName(), Pod: pod}
	return identity.FromFiles(files, self, nil, log), nil
}

// siblingMethods are the methods that other hypervisors of the same VM may call.
var siblingMethods = []string{vmpb.Hypervisor_StartMigration_FullMethodName, vmpb.Hypervisor_CarryConnections_FullMethodName}

// peerMayCall allows everything to the controller, and migrations to other hypervisors of the same VM. Users
// have the unix socket.
func peerMayCall(spec *vmpb.VMSpec) func(ctx context.Context, method string) error {
	return func(ctx context.Context, method string) error {
		peer, err := identity.FromContext(ctx)
		switch {
		case err != nil:
			return err
		case peer.IsController():
			return nil
		case slices.Contains(siblingMethods, method) && isSibling(peer, spec):
			return nil
		}
		return status.Errorf(codes.PermissionDenied, "%s may not call %s here", peer, method)
	}
}

// parseExposed reads the TCP and UDP ports of the guest that clients may use. It returns nil if there are none.
func parseExposed(tcp, udp, probe string) (*ports.Config, error) {
	if tcp == "" && udp == "" {
		return nil, nil
	}
	config := &ports.Config{}
	var err error
	if config.Ports, err = parsePorts(tcp); err != nil {
		return nil, fmt.Errorf("%s: %w", vmpb.EnvPorts, err)
	}
	if config.UDPPorts, err = parsePorts(udp); err != nil {
		return nil, fmt.Errorf("%s: %w", vmpb.EnvUDPPorts, err)
	}
	if config.Probe, err = ports.ParseProbe(probe); err != nil {
		return nil, fmt.Errorf("%s: %w", vmpb.EnvProbe, err)
	}
	return config, nil
}

// parseOverlay reads the address and the MTU of the overlay. It returns nil if both are empty.
func parseOverlay(address, mtu string) (*overlay.Config, error) {
	if address == "" && mtu == "" {
		return nil, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", vmpb.EnvOverlay, err)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", vmpb.EnvOverlay, err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%s: %q is not a port number", vmpb.EnvOverlay, port)
	}
	length, err := strconv.ParseUint(cmp.Or(mtu, "0"), 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%s: %q is not a number of bytes", vmpb.EnvOverlayMTU, mtu)
	}
	return &overlay.Config{Listen: netip.AddrPortFrom(ip, uint16(number)), MTU: int(length)}, nil
}

// parseBandwidth reads a number of bytes per second. An empty text is 0.
func parseBandwidth(text string) (uint64, error) {
	bandwidth, err := strconv.ParseUint(cmp.Or(text, "0"), 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of bytes per second", text)
	}
	return bandwidth, nil
}

// parsePorts reads a comma-separated list of ports.
func parsePorts(list string) ([]uint16, error) {
	var ports []uint16
	for text := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' }) {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return nil, fmt.Errorf("%q is not a port number", text)
		}
		ports = append(ports, uint16(port))
	}
	return ports, nil
}

// parsePrefixes reads a comma-separated list of networks.
func parsePrefixes(list string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for text := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' }) {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a network: %w", text, err)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}
