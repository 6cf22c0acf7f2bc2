package hypervisor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	"github.com/millwright-dev/millwright/internal/vm/network/packetsocket"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// errNetwork is wrapped by errors of VMSpec.networks.
var errNetwork = errors.New("the guest's network is not available")

// openNetworks opens the Pod's interfaces for the guest. It runs before the disks are locked, because a guest does not start
// if it lacks one of its networks. A Pod has all of its interfaces before its containers start.
func (h *hypervisor) openNetworks(context.Context) error {
	spec := h.config.Spec
	for _, network := range spec.GetNetworks() {
		guest := packetsocket.Guest{VM: spec.GetNamespace() + "/" + spec.GetName() + " " + network.GetName(), MAC: networkMAC(spec, network)}
		socket, err := packetsocket.Open(network.GetInterface(), guest, h.log)
		if err != nil {
			return fmt.Errorf("%w: network %s: %w", errNetwork, network.GetName(), explainNetwork(err, network.GetInterface()))
		}
		h.networks = append(h.networks, socket)
	}
	return nil
}

// explainNetwork returns an error with what the operator of the cluster must check.
func explainNetwork(err error, device string) error {
	switch {
	case errors.Is(err, packetsocket.ErrNoInterface):
		return fmt.Errorf("the pod has no network interface %s; check that Multus runs on this node and that it permits the NetworkAttachmentDefinition", device)
	case errors.Is(err, packetsocket.ErrNotPermitted):
		return fmt.Errorf("this process cannot use network interface %s: it does not have the capability NET_RAW; check that the program in the hypervisor's image has this file capability", device)
	}
	return err
}

// networkMAC returns the guest's Ethernet address on a network: the address in the specification or, if there is none, a locally
// administered address that is the same on every host.
func networkMAC(spec *vmpb.VMSpec, network *vmpb.NetworkInterface) net.HardwareAddr {
	if mac := vmspec.ParseMAC(network.GetMac()); mac != nil {
		return mac
	}
	sum := sha256.Sum256([]byte(identityOf(spec) + "/" + network.GetName()))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// guestInterfaces returns the network interfaces that openNetworks has opened.
func (h *hypervisor) guestInterfaces() []qemu.Interface {
	var interfaces []qemu.Interface
	for i, network := range h.config.Spec.GetNetworks() {
		interfaces = append(interfaces, qemu.Interface{MAC: networkMAC(h.config.Spec, network), Pass: h.networks[i].Pass})
	}
	return interfaces
}

func (h *hypervisor) closeNetworks() {
	for _, socket := range h.networks {
		socket.Close()
	}
}
