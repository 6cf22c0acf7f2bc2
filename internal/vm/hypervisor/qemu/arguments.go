package qemu

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// The sockets that QEMU inherits, by their numbers in its process: those that follow
// standard input, output and error.
const (
	firstFD   = 3
	monitorFD = iota + firstFD - 1
	consoleFD
	agentFD
	inherited = agentFD - firstFD + 1
)

// AgentPort is the name under which the guest finds the guest agent's virtio-serial
// port.
const AgentPort = "org.qemu.guest_agent.0"

// plainProcessor is TCG's guest processor: what x86-64-v2 asks for, which is what
// today's distributions are built for, and no more.
const plainProcessor = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"

// arguments returns QEMU's command line for a valid configuration.
//
// Where QEMU takes JSON, it gets JSON, in which a value cannot become another
// option. Elsewhere the values are numbers and addresses of our own making, or go
// through escape, or are whole arguments that QEMU does not look into (-kernel,
// -initrd, -append).
//
// Two options are left out on purpose: -no-reboot, which would turn a reset into the
// end of the process, and -no-shutdown, without which QEMU ends when the guest
// powers off.
func arguments(c Config) []string {
	args := []string{"-name", "guest=" + escape(c.Name) + ",debug-threads=on"}
	if c.UUID != "" {
		args = append(args, "-uuid", c.UUID)
	}
	args = append(args,
		"-machine", MachineType+",usb=off,vmport=off",
		"-accel", string(c.Processor.Accelerator),
		"-cpu", processorModel(c.Processor.Accelerator),
		"-smp", strconv.Itoa(c.Processor.Count),
		"-m", strconv.Itoa(c.MemoryMiB)+"M",
		"-nodefaults", "-no-user-config",
		"-display", "none",
		// Obsolete system calls, other privileges, other programs, and other
		// limits or priorities: QEMU needs none of these, and an attacker might.
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-boot", "menu=off,strict=on",
		"-S",
	)
	args = append(args, channelArguments()...)
	args = append(args, diskArguments(c.Disks)...)
	args = append(args, kernelArguments(c.Kernel)...)
	args = append(args, networkArguments(c.Network)...)
	args = append(args, "-device", object{"driver": "virtio-rng-pci", "id": "rng0"}.json())
	for _, item := range c.Firmware {
		args = append(args, "-fw_cfg", "name="+escape(item.Name)+",file="+escape(item.Path))
	}
	return args
}

func processorModel(accelerator Accelerator) string {
	if accelerator == KVM {
		return "host"
	}
	return plainProcessor
}

// channelArguments are for what goes through the inherited sockets.
func channelArguments() []string {
	return []string{
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", monitorFD),
		"-mon", "chardev=qmp,mode=control",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", consoleFD),
		"-device", object{"driver": "isa-serial", "id": "serial0", "chardev": "console", "index": 0}.json(),
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", agentFD),
		"-device", object{"driver": "virtio-serial-pci", "id": "channels"}.json(),
		"-device", object{
			// QEMU reports the guest's opening of ports that have an id only.
			"driver": "virtserialport", "id": "agent0", "bus": "channels.0", "nr": 1,
			"chardev": "agent", "name": AgentPort,
		}.json(),
	}
}

func diskArguments(disks Disks) []string {
	args := []string{
		"-blockdev", blockNode("root", disks.Root, object{
			// Trimmed blocks are given back, so that the disk stays small.
			"discard": "unmap",
		}).json(),
		// Index 0 belongs to the loader of a directly booted kernel.
		"-device", object{"driver": "virtio-blk-pci", "id": "disk0", "drive": "root", "bootindex": 1}.json(),
	}
	if disks.Seed.Path == "" {
		return args
	}
	return append(args,
		"-blockdev", blockNode("seed", disks.Seed, object{"read-only": true}).json(),
		"-device", object{"driver": "virtio-blk-pci", "id": "disk1", "drive": "seed"}.json(),
	)
}

// blockNode describes a raw image; its options count for the file below it as well.
// The format is given, never guessed: a guest could write another format's header
// into its raw disk and have QEMU open any file of the host.
func blockNode(name string, disk Disk, options object) object {
	file := object{
		"driver": "file", "filename": disk.Path,
		// With "auto", which is the default, QEMU goes on where it cannot lock.
		"locking": "on",
	}
	if disk.Block {
		file["driver"] = "host_device"
	}
	node := object{"driver": "raw", "node-name": name, "file": file}
	for key, value := range options {
		node[key], file[key] = value, value
	}
	return node
}

func kernelArguments(kernel *Kernel) []string {
	if kernel == nil {
		return nil
	}
	args := []string{"-kernel", kernel.Path, "-append", kernel.Cmdline}
	if kernel.Initrd != "" {
		args = append(args, "-initrd", kernel.Initrd)
	}
	return args
}

func networkArguments(n *UserNetwork) []string {
	if n == nil {
		return nil
	}
	// ipv4=on is not the default once ipv6=on is given.
	backend := fmt.Sprintf("user,id=net0,ipv4=on,net=%s,host=%s,dns=%s,dhcpstart=%s",
		n.IPv4, n.Gateway4(), n.DNS4(), n.Guest4())
	if n.IPv6.IsValid() {
		backend += fmt.Sprintf(",ipv6=on,ipv6-prefix=%s,ipv6-prefixlen=%d,ipv6-host=%s",
			n.IPv6.Addr(), n.IPv6.Bits(), n.Gateway6())
	} else {
		backend += ",ipv6=off"
	}
	for _, forward := range n.Forwards {
		backend += fmt.Sprintf(",hostfwd=tcp:%s-%s:%d", forward.Host, n.Guest4(), forward.Port)
	}
	return []string{
		"-netdev", backend,
		// No boot ROM: guests do not boot from this network.
		"-device", object{
			"driver": "virtio-net-pci", "id": "nic0", "netdev": "net0", "mac": n.MAC.String(), "romfile": "",
		}.json(),
	}
}

// escape makes a text one value in a list of key=value pairs.
func escape(text string) string {
	return strings.ReplaceAll(text, ",", ",,")
}

// object is a JSON object for the command line.
type object map[string]any

// json is the object's text, the same for the same content.
func (o object) json() string {
	text, err := json.Marshal(o)
	if err != nil { // maps of strings, numbers, booleans and maps can be encoded
		panic(err)
	}
	return string(text)
}
