// Package seed creates the volume with a guest's configuration, in the format of cloud-init's
// data source NoCloud.
package seed

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
)

// maxUserData is the maximum size in bytes, 16 times that of a Secret.
const maxUserData = 16 << 20

// Content is the content of the volume.
type Content struct {
	// InstanceID identifies the machine: guests apply the configuration once per ID.
	// Required.
	InstanceID string
	// HostName is the guest's name. Required.
	HostName string
	// UserData of the guest, at most 16 MiB.
	UserData []byte
	// Network of the guest. Nil: the guest's default, mostly DHCP.
	Network *Network
}

// Network configures one network card.
type Network struct {
	// MAC of the card.
	MAC net.HardwareAddr
	// Links are the card's addresses, at most one of each IP version.
	Links []Link
	// NameServers are optional.
	NameServers []netip.Addr
}

// Link is an address without a subnet: all traffic goes to the gateway.
type Link struct {
	// Address of the guest.
	Address netip.Addr
	// Gateway of the same IP version. It is on the link.
	Gateway netip.Addr
}

// Image returns the volume: ISO 9660 named CIDATA, with the files user-data, meta-data and, with
// a network, network-config. It is reproducible: source and target of a migration must have the
// same disk.
func Image(content Content) ([]byte, error) {
	if len(content.UserData) > maxUserData {
		return nil, fmt.Errorf("%d bytes of user data are more than %d", len(content.UserData), maxUserData)
	}
	// JSON is YAML.
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

// version2 returns the network in cloud-init's format, version 2.
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
