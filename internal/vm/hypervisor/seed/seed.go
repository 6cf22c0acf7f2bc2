// Package seed writes the volume in which a guest finds its configuration, in the format
// of cloud-init's data source NoCloud.
package seed

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
)

// maxUserData bounds what is read into memory. Kubernetes' own limit for a Secret is a
// sixteenth of it.
const maxUserData = 16 << 20

// Content is what the guest finds.
type Content struct {
	// InstanceID says for which machine the configuration is: guests apply it once per
	// ID. Required.
	InstanceID string
	// HostName is the guest's name. Required.
	HostName string
	// UserData is given to the guest byte for byte. Up to 16 MiB.
	UserData []byte
	// Network is the guest's network. Nil: the guest decides, mostly by DHCP.
	Network *Network
}

// Network configures one card.
type Network struct {
	// MAC is how the guest finds the card.
	MAC net.HardwareAddr
	// Links are the card's addresses, at most one of each IP version.
	Links []Link
	// NameServers may be none.
	NameServers []netip.Addr
}

// Link is an address without neighbours: all goes to the gateway.
type Link struct {
	// Address is the guest's.
	Address netip.Addr
	// Gateway is of the same IP version, and on the link although no prefix says so.
	Gateway netip.Addr
}

// Image returns the volume: ISO 9660 named CIDATA, with the files user-data, meta-data
// and, with a network, network-config. The same content gives the same bytes: source
// and target of a migration must have the same disk.
func Image(content Content) ([]byte, error) {
	if len(content.UserData) > maxUserData {
		return nil, fmt.Errorf("%d bytes of user data are more than %d", len(content.UserData), maxUserData)
	}
	// JSON is YAML, and leaves no questions of quoting.
	metaData, err := json.Marshal(map[string]string{
		"instance-id": content.InstanceID, "local-hostname": content.HostName,
	})
	if err != nil {
		return nil, fmt.Errorf("writing the seed's meta-data: %w", err)
	}
	files := []file{{"meta-data", append(metaData, '\n')}}
	if content.Network != nil {
		config, err := json.Marshal(content.Network.version2())
		if err != nil {
			return nil, fmt.Errorf("writing the seed's network-config: %w", err)
		}
		files = append(files, file{"network-config", append(config, '\n')})
	}
	return iso("CIDATA", append(files, file{"user-data", content.UserData})), nil
}

// version2 is the network in cloud-init's format of that name.
func (n *Network) version2() map[string]any {
	var addresses []string
	var routes []map[string]any
	for _, link := range n.Links {
		addresses = append(addresses, netip.PrefixFrom(link.Address, link.Address.BitLen()).String())
		everywhere := "0.0.0.0/0"
		if link.Address.Is6() {
			everywhere = "::/0"
		}
		routes = append(routes, map[string]any{"to": everywhere, "via": link.Gateway.String(), "on-link": true})
	}
	card := map[string]any{
		"match": map[string]string{"macaddress": n.MAC.String()}, "addresses": addresses, "routes": routes,
	}
	if len(n.NameServers) > 0 {
		card["nameservers"] = map[string]any{"addresses": n.NameServers}
	}
	return map[string]any{"version": 2, "ethernets": map[string]any{"eth0": card}}
}
