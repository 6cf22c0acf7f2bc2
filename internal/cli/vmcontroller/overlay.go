package vmcontroller

import (
	"slices"

	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/vm/network"
	"github.com/millwright-dev/millwright/internal/vm/network/overlay"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// The values of --vm-overlay.
const (
	overlayNamespace    = "namespace"
	overlayInstallation = "installation"
	overlayOff          = "off"
)

// overlayFlags are the flags for the network between guests on different hosts.
type overlayFlags struct {
	scope     string
	port, mtu int
}

func (o *overlayFlags) add(set *pflag.FlagSet) {
	set.StringVar(&o.scope, "vm-overlay", overlayNamespace, "which virtual machines reach each other, on any hosts: namespace for those of the same namespace, installation for all, off for none")
	set.IntVar(&o.port, "vm-overlay-port", vmpb.OverlayPort, "UDP port on which hypervisors carry packets between virtual machines, encrypted with WireGuard; network policies must allow it between their Pods")
	set.IntVar(&o.mtu, "vm-overlay-mtu", 0, "length in bytes of the longest packet between virtual machines, 1280 to 1500; 0 to derive it from the network interfaces of the hypervisors' Pods")
}

// validate adds all problems with the flags.
func (o *overlayFlags) validate(wrong *args.Problems) {
	wrong.If(!slices.Contains([]string{overlayNamespace, overlayInstallation, overlayOff}, o.scope), "--vm-overlay: unknown value %q; expected namespace, installation or off", o.scope)
	wrong.Port("vm-overlay-port", o.port)
	wrong.If(o.port == 0, "--vm-overlay-port: must not be 0; use --vm-overlay=off")
	wrong.If(o.mtu != 0 && (o.mtu < network.MinMTU || o.mtu > overlay.MaxMTU), "--vm-overlay-mtu: %d is not between %d and %d", o.mtu, network.MinMTU, overlay.MaxMTU)
}

// config returns the configuration from the flags.
func (o *overlayFlags) config() manager.VMOverlay {
	if o.scope == overlayOff {
		return manager.VMOverlay{}
	}
	config := manager.VMOverlay{}
	config.Port, config.MTU = uint16(o.port), o.mtu
	if o.scope == overlayInstallation {
		config.NetworkOf = func(string) string { return "" }
	}
	return config
}
