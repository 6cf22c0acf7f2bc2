// Package seed creates the volume with a guest's configuration, in the format of cloud-init's NoCloud data source.
package seed

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
)

// maxUserData is the maximum size of the user data in bytes, 16 times the maximum size of a Secret.
const maxUserData = 16 << 20

// Content is the content of the volume.
type Content struct {
	// InstanceID identifies the machine. Guests apply the configuration once per ID. Required.
	InstanceID string
	// HostName is the guest's name. Required.
	HostName string
	// ProviderID is the guest's provider ID, with which its Node registers. Optional.
	ProviderID string
	// UserData is the guest's user data, at most 16 MiB.
	UserData []byte
	// Network is the guest's network. If nil, the guest's default applies, usually DHCP.
	Network *Network
}

// Network configures one network interface.
type Network struct {
	// MAC is the Ethernet address of the interface.
	MAC net.HardwareAddr
	// Links are the addresses of the interface, at most one of each IP version.
	Links []Link
	// NameServers are the addresses of name servers. Optional.
	NameServers []netip.Addr
}

// Link is an address in a subnet with a gateway.
type Link struct {
	// Address is the address of the guest, with the length of the subnet's prefix.
	Address netip.Prefix
	// Gateway is an address of the subnet.
	Gateway netip.Addr
}

// label is the label of the volume. ISO 9660 specifies upper case, but all readers of the data source accept lower
// case, and some accept nothing else.
const label = "cidata"

// Image returns the volume: an ISO 9660 file system with the label cidata and the files user-data, meta-data and,
// with a network, network-config. The result is reproducible, because source and target of a migration must have
// the same disk.
func Image(content Content) ([]byte, error) {
	if len(content.UserData) > maxUserData {
		return nil, fmt.Errorf("%d bytes of user data exceed the maximum of %d", len(content.UserData), maxUserData)
	}
	meta := map[string]string{"instance-id": content.InstanceID, "local-hostname": content.HostName}
	if content.ProviderID != "" {
		meta["provider-id"] = content.ProviderID
	}
	// JSON is valid YAML.
	metaData, err := json.Marshal(meta)
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
	return iso(label, append(files, file{"user-data", content.UserData})), nil
}

// version2 returns the network in version 2 of cloud-init's format. It uses only fields that all versions and renderers
// of cloud-init understand: many of them ignore on-link in routes, so the gateway must be in the subnet, and version
// 22.4 reduces the destination ::/0 to ::/64, so the gateways have their own fields.
func (n *Network) version2() map[string]any {
	card := map[string]any{"match": map[string]string{"macaddress": n.MAC.String()}}
	var addresses []string
	for _, link := range n.Links {
		addresses = append(addresses, link.Address.String())
		gateway := "gateway4"
		if link.Gateway.Is6() {
			gateway = "gateway6"
		}
		card[gateway] = link.Gateway.String()
	}
	card["addresses"] = addresses
	if len(n.NameServers) > 0 {
		card["nameservers"] = map[string]any{"addresses": n.NameServers}
	}
	return map[string]any{"version": 2, "ethernets": map[string]any{"eth0": card}}
}

// The structures of ISO 9660 (ECMA-119) for a few files in one directory. The available libraries write the
// current time into the volume. Numbers in brackets are sections of ECMA-119.

const (
	sectorSize = 2048
	// systemArea is reserved by the standard [7.2.1].
	systemArea = 16
)

// Positions of the structures before the files' content, in sectors.
const (
	primarySector = systemArea + iota
	terminatorSector
	littleTableSector
	bigTableSector
	directorySector
	firstFileSector
)

// file is a file in the root directory. Its name is used without conversion to upper case and without a version.
type file struct {
	name string
	data []byte
}

// iso returns a volume with the files, which are sorted by name. Their records must fit into one sector, which has
// space for about forty.
func iso(volume string, files []file) []byte {
	var content bytes.Buffer
	directory := append(record("\x00", directorySector, sectorSize, true), record("\x01", directorySector, sectorSize, true)...)
	for _, f := range files {
		sector := firstFileSector + content.Len()/sectorSize
		directory = append(directory, record(f.name, sector, len(f.data), false)...)
		content.Write(padded(f.data))
	}
	image := make([]byte, systemArea*sectorSize)
	sectors := firstFileSector + content.Len()/sectorSize
	for _, part := range [][]byte{
		primary(volume, sectors), terminator(),
		pathTable(binary.LittleEndian), pathTable(binary.BigEndian), directory, content.Bytes(),
	} {
		image = append(image, padded(part)...)
	}
	return image
}

// padded extends data to whole sectors.
func padded(data []byte) []byte {
	missing := -len(data) & (sectorSize - 1)
	return append(data[:len(data):len(data)], make([]byte, missing)...)
}

// record returns a directory entry [9.1].
func record(name string, sector, size int, isDirectory bool) []byte {
	length := 33 + len(name)
	length += length & 1
	r := make([]byte, length)
	r[0] = byte(length)
	both32(r[2:], sector)
	both32(r[10:], size)
	copy(r[18:], []byte{70, 1, 1, 0, 0, 0, 0}) // the first possible date
	if isDirectory {
		r[25] = 2
	}
	both16(r[28:], 1)
	r[32] = byte(len(name))
	copy(r[33:], name)
	return r
}

// primary returns the primary volume descriptor [8.4].
func primary(volume string, sectors int) []byte {
	d := make([]byte, sectorSize)
	copy(d, "\x01CD001\x01")
	text(d[8:40], "")       // system
	text(d[40:72], volume)  // volume
	both32(d[80:], sectors) // size of the volume
	both16(d[120:], 1)      // volumes of the set
	both16(d[124:], 1)      // the number of this volume
	both16(d[128:], sectorSize)
	both32(d[132:], len(pathTable(binary.LittleEndian)))
	binary.LittleEndian.PutUint32(d[140:], littleTableSector)
	binary.BigEndian.PutUint32(d[148:], bigTableSector)
	copy(d[156:190], record("\x00", directorySector, sectorSize, true))
	text(d[190:813], "") // set, publisher, preparer, application, three files' names
	for date := 813; date < 881; date += 17 {
		copy(d[date:], "0000000000000000\x00") // not specified [8.4.26.1]
	}
	d[881] = 1 // version of the structure
	return d
}

// terminator returns the end of the descriptors [8.3].
func terminator() []byte { return []byte("\xffCD001\x01") }

// pathTable returns the table with the only directory [9.4].
func pathTable(order binary.ByteOrder) []byte {
	t := make([]byte, 10)
	t[0] = 1
	order.PutUint32(t[2:], directorySector)
	order.PutUint16(t[6:], 1)
	return t
}

// text writes the value and pads the field with spaces.
func text(field []byte, value string) {
	copy(field, bytes.Repeat([]byte{' '}, len(field)))
	copy(field, value)
}

// both32 writes a number in both byte orders [7.3.3].
func both32(field []byte, n int) {
	binary.LittleEndian.PutUint32(field, uint32(n))
	binary.BigEndian.PutUint32(field[4:], uint32(n))
}

// both16 writes a number in both byte orders [7.2.3].
func both16(field []byte, n int) {
	binary.LittleEndian.PutUint16(field, uint16(n))
	binary.BigEndian.PutUint16(field[2:], uint16(n))
}
