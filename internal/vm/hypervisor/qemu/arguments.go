package qemu

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The sockets that QEMU inherits, numbered by their file descriptors in its process.
const (
	firstFD   = 3
	monitorFD = iota + firstFD - 1
	consoleFD
	agentFD
	// The guest's frames leave QEMU through fromGuestFD. Those that the firewall allows return through
	// toNetworkFD.
	fromGuestFD
	toNetworkFD
	// Frames from other guests.
	toGuestFD
	inherited = toGuestFD - firstFD + 1
	// The directory with the sockets of a migration, if there is one. The sockets of Config.Interfaces follow.
	directoryFD = firstFD + inherited
)

// AgentPort is the name of the guest agent's virtio-serial port.
const AgentPort = "org.qemu.guest_agent.0"

// reconnectDelay is how many seconds the guest waits for a new connection to a served disk before it is stopped.
// QEMU detects a lost connection when the guest uses the disk.
const reconnectDelay = 2

// rootNode is the name of the root disk in QEMU.
const rootNode = "root"

// plainProcessor is the guest's processor with TCG: x86-64-v2, the level that distributions are built for.
const plainProcessor = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"

// arguments returns QEMU's command line for a valid configuration.
//
// Where QEMU accepts JSON, arguments uses JSON, in which a value cannot turn into another option. All other values
// are generated numbers and addresses, or escaped, or whole arguments that QEMU does not parse (-bios, -kernel,
// -initrd, -append).
//
// The arguments -no-reboot and -no-shutdown are not used. With -no-reboot, a reset would terminate the process;
// with -no-shutdown, a guest that powers off would not.
func arguments(c Config) []string {
	args := []string{"-name", "guest=" + escape(c.Name) + ",debug-threads=on"}
	if c.UUID != "" {
		args = append(args, "-uuid", c.UUID)
	}
	args = append(args,
		"-machine", MachineType+",usb=off,vmport=off"+c.firmwareOutput(),
		"-accel", c.Processor.accelerator(),
		"-cpu", processorModel(c.Processor.Accelerator),
		"-smp", strconv.Itoa(c.Processor.Count),
		"-m", strconv.Itoa(c.MemoryMiB)+"M",
		"-nodefaults", "-no-user-config",
		"-display", "none",
		// QEMU does not need obsolete system calls, privilege escalation, other programs, or changes to limits and
		// priorities, but an attacker might.
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-boot", "menu=off,strict=on",
		"-S",
	)
	if c.Incoming {
		args = append(args, "-incoming", "defer")
	}
	if c.UEFI != nil {
		args = append(args, "-bios", c.UEFI.Path)
	}
	args = append(args, channelArguments()...)
	args = append(args, diskArguments(c.Disks)...)
	args = append(args, kernelArguments(c.Kernel)...)
	args = append(args, networkArguments(c.Network)...)
	args = append(args, "-device", object{"driver": "virtio-rng-pci", "id": "rng0"}.json())
	args = append(args, c.interfaceArguments()...)
	args = append(args, dataDiskArguments(c.Disks.Data)...)
	for _, item := range c.Firmware {
		args = append(args, "-fw_cfg", "name="+escape(item.Name)+",file="+escape(item.Path))
	}
	return append(args, displayArguments(c.Display)...)
}

// firmwareOutput returns the option of the machine that makes SeaBIOS print on the serial port. The option only changes
// a number that SeaBIOS reads when it starts, so it may differ between both sides of a migration. Other guests do not
// get it: OVMF always prints there, and of a guest that starts a kernel directly, only the kernel does.
func (c Config) firmwareOutput() string {
	if c.UEFI != nil || c.Kernel != nil {
		return ""
	}
	return ",graphics=off"
}

func processorModel(accelerator Accelerator) string {
	if accelerator == KVM {
		return "host"
	}
	return plainProcessor
}

func channelArguments() []string {
	return []string{
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", monitorFD),
		"-mon", "chardev=qmp,mode=control",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", consoleFD),
		"-device", object{"driver": "isa-serial", "id": "serial0", "chardev": "console", "index": 0}.json(),
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", agentFD),
		"-device", object{"driver": "virtio-serial-pci", "id": "channels"}.json(),
		"-device", object{
			// QEMU reports the opening of a port only if the port has an ID.
			"driver": "virtserialport", "id": "agent0", "bus": "channels.0", "nr": 1,
			"chardev": "agent", "name": AgentPort,
		}.json(),
	}
}

func diskArguments(disks Disks) []string {
	args := []string{
		"-blockdev", blockNode(rootNode, disks.Root, object{
			// The disk stays small if trimmed blocks are freed.
			"discard": "unmap",
		}).json(),
		// Index 0 is the loader of a directly booted kernel.
		"-device", blockDevice("disk0", rootNode, object{"bootindex": 1}).json(),
	}
	if disks.Seed.Path == "" {
		return args
	}
	return append(args,
		"-blockdev", blockNode("seed", disks.Seed, object{"read-only": true}).json(),
		"-device", blockDevice("disk1", "seed", nil).json(),
	)
}

func dataDiskArguments(disks []DataDisk) []string {
	var args []string
	for _, disk := range disks {
		node := dataNode(disk.Serial)
		args = append(args,
			"-blockdev", blockNode(node, disk.Disk, object{"discard": "unmap"}).json(),
			"-device", blockDevice(node, node, object{"serial": disk.Serial}).json(),
		)
	}
	return args
}

// dataNode returns the name of a data disk in QEMU.
func dataNode(serial string) string { return "data-" + serial }

// blockDevice describes a disk of the guest. If the storage fails, the guest is stopped instead of receiving the
// error: most errors are temporary, and a guest that receives an error loses the data that it could not write.
func blockDevice(id, node string, options object) object {
	device := object{"driver": "virtio-blk-pci", "id": id, "drive": node, "werror": "stop", "rerror": "stop"}
	maps.Copy(device, options)
	return device
}

// blockNode describes a raw image. The options also apply to the file below it. The format is set explicitly and
// never detected: a guest could write the header of another format to its raw disk and make QEMU open any file of
// the host.
func blockNode(name string, disk Disk, options object) object {
	file := object{
		"driver": "file", "filename": disk.Path,
		// With the default, "auto", QEMU continues if it cannot lock.
		"locking": "on",
	}
	switch {
	case disk.Block:
		file["driver"] = "host_device"
	case disk.Served != Served{}:
		file = object{"driver": "nbd", "server": unixAddress(disk.Served.Socket), "export": disk.Served.Export, "reconnect-delay": reconnectDelay}
	}
	node := object{"driver": "raw", "node-name": name, "file": file}
	if disk.Direct {
		node["cache"], file["cache"] = object{"direct": true}, object{"direct": true}
	}
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
	// Once ipv6=on is set, ipv4=on is no longer the default.
	backend := fmt.Sprintf("user,id=net0,ipv4=on,net=%s,host=%s,dns=%s,dhcpstart=%s",
		n.IPv4, n.Gateway4(), n.DNS4(), n.Guest4())
	if n.IPv6.IsValid() {
		backend += fmt.Sprintf(",ipv6=on,ipv6-prefix=%s,ipv6-prefixlen=%d,ipv6-host=%s",
			n.IPv6.Addr(), n.IPv6.Bits(), n.Gateway6())
	} else {
		backend += ",ipv6=off"
	}
	return []string{
		"-netdev", backend,
		"-chardev", fmt.Sprintf("socket,id=fromguest,fd=%d", fromGuestFD),
		"-chardev", fmt.Sprintf("socket,id=tonetwork,fd=%d", toNetworkFD),
		// Queues are named from the network's point of view: this one is what the network receives.
		"-object", object{
			"qom-type": "filter-redirector", "id": "firewall", "netdev": "net0", "queue": "rx",
			"outdev": "fromguest", "indev": "tonetwork",
		}.json(),
		// The network interface has no boot ROM, because guests do not boot from this network.
		"-device", object{
			"driver": "virtio-net-pci", "id": "nic0", "netdev": "net0", "mac": n.MAC.String(), "romfile": "",
		}.json(),
		"-chardev", fmt.Sprintf("socket,id=toguest,fd=%d", toGuestFD),
		// This queue is what the network sends. It gets the frames of other guests and of the hypervisor.
		"-object", object{"qom-type": "filter-redirector", "id": "guests", "netdev": "net0", "queue": "tx", "indev": "toguest"}.json(),
	}
}

// interfaceArguments describes the network interfaces whose frames this process passes. They have no offloads, because QEMU
// can pass only complete frames to sockets.
func (c Config) interfaceArguments() []string {
	var args []string
	for i, network := range c.Interfaces {
		id := strconv.Itoa(i + 1)
		args = append(args,
			"-netdev", object{"type": "dgram", "id": "net" + id, "local": object{"type": "fd", "str": strconv.Itoa(c.interfaceFD(i))}}.json(),
			"-device", object{"driver": "virtio-net-pci", "id": "nic" + id, "netdev": "net" + id, "mac": network.MAC.String(), "romfile": ""}.json())
	}
	return args
}

// interfaceFD returns the file descriptor of an element of Interfaces in QEMU's process.
func (c Config) interfaceFD(index int) int {
	if c.Sockets == "" {
		return directoryFD + index
	}
	return directoryFD + 1 + index
}

// escape quotes a value in a list of key=value pairs.
func escape(text string) string { return strings.ReplaceAll(text, ",", ",,") }

// object is a JSON object for the command line.
type object map[string]any

// json returns the same text for the same content.
func (o object) json() string {
	text, err := json.Marshal(o)
	if err != nil { // impossible for maps of strings, numbers, booleans and maps
		panic(err)
	}
	return string(text)
}

// Accelerator is how QEMU executes the guest's instructions.
type Accelerator string

const (
	// KVM executes the instructions on the host's processor.
	KVM Accelerator = "kvm"
	// TCG translates the instructions. It is at least ten times slower but works everywhere.
	TCG Accelerator = "tcg"
)

// DetectAccelerator returns KVM if this host can run any guest with it, and TCG otherwise. The override "kvm" or
// "tcg" selects an accelerator; "" and "auto" select detection. Any other override results in a *FieldError.
//
// It is not sufficient that /dev/kvm can be opened. Some hosts that are virtual machines have this device,
// although their processor has neither vmx nor svm. QEMU starts there, but an ordinary guest never boots. QEMU's
// own fallback (-accel kvm -accel tcg) does not help, because it applies only if KVM cannot be opened.
func DetectAccelerator(override string) (Accelerator, error) {
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		cpuinfo = nil // without flags, TCG is used
	}
	return chooseAccelerator(override, string(cpuinfo), probeKVM)
}

// probeKVM opens the device as QEMU does.
func probeKVM() error {
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return device.Close()
}

func chooseAccelerator(override, cpuinfo string, probe func() error) (Accelerator, error) {
	switch override {
	case string(KVM), string(TCG):
		return Accelerator(override), nil
	case "", "auto":
	default:
		return "", &FieldError{"accelerator", fmt.Sprintf("invalid accelerator %q; expected auto, kvm or tcg", override)}
	}
	if virtualizes(cpuinfo) && probe() == nil {
		return KVM, nil
	}
	return TCG, nil
}

// virtualizes reports whether /proc/cpuinfo lists one of the flags. It compares whole words, because other flags,
// such as svm_lock, contain these.
func virtualizes(cpuinfo string) bool {
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == "flags" {
			flags := strings.Fields(value)
			return slices.Contains(flags, "vmx") || slices.Contains(flags, "svm")
		}
	}
	return false
}
