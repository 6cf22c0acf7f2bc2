// Package vmspec parses and validates the specification of a virtual machine, a VMSpec.
package vmspec

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/confine"
	"github.com/millwright-dev/millwright/internal/specialaddress"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Error reports an invalid VMSpec. Nothing was changed.
type Error struct {
	// Field is the path of the field, such as "initial_image.url". It is "spec" if the text cannot be parsed or
	// does not match the configuration.
	Field string
	// Problem is a message for users.
	Problem string
}

// Error implements error.
func (e *Error) Error() string { return e.Field + ": " + e.Problem }

// Parse parses and validates a VMSpec, which is either protobuf JSON or the binary form in standard base64 with
// padding. Unknown fields, which a newer controller may set, are dropped. Parse returns an *Error for the first
// field that is missing, invalid, or not implemented.
func Parse(text string) (*vmpb.VMSpec, error) {
	spec, problem := decode(strings.TrimSpace(text))
	if problem != nil {
		return nil, problem
	}
	if err := Check(spec); err != nil {
		return nil, err
	}
	return spec, nil
}

func decode(text string) (*vmpb.VMSpec, *Error) {
	spec := &vmpb.VMSpec{}
	switch {
	case text == "":
		return nil, &Error{"spec", "is required"}
	case strings.HasPrefix(text, "{"):
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), spec); err != nil {
			return nil, &Error{"spec", "cannot be parsed as JSON: " + err.Error()}
		}
		return spec, nil
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, &Error{"spec", "is neither JSON nor base64: " + err.Error()}
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, spec); err != nil {
		return nil, &Error{"spec", "cannot be parsed as a binary message: " + err.Error()}
	}
	return spec, nil
}

// Limits of a VM. They are above QEMU's limits and prevent overflows.
const (
	maxCPUs        = 4096
	minMemoryBytes = 1 << 20
	minUEFIBytes   = 64 << 20 // with 32 MiB, OVMF stops with an exception
	maxMemoryBytes = 64 << 40
	maxDiskBytes   = disks.MaxBytes
	maxDataDisks   = 16
	maxNetworks    = 8
	// maxCommandLine is above the limit of Linux on any platform, in bytes.
	maxCommandLine = 64 << 10
)

var (
	uuidForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	// dataDiskForm is limited by the length of a virtio serial number.
	dataDiskForm = regexp.MustCompile(`^[0-9a-z]([0-9a-z-]{0,18}[0-9a-z])?$`)
	networkForm  = regexp.MustCompile(`^[0-9a-z]([0-9a-z-]{0,61}[0-9a-z])?$`)
	// interfaceForm matches names of network interfaces, of at most 15 bytes. Linux permits more characters.
	interfaceForm = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]{0,14}$`)
	// nameForm allows more than Kubernetes does. All of its names are safe in logs, command lines and host names.
	nameForm = regexp.MustCompile(`^[0-9A-Za-z]([0-9A-Za-z._-]{0,251}[0-9A-Za-z])?$`)
)

// Check validates a VMSpec. It returns the same errors as Parse.
func Check(spec *vmpb.VMSpec) error {
	for _, check := range []func(*vmpb.VMSpec) *Error{
		checkNames, checkMode, checkImage, checkController, checkGuest, checkShutdown, checkKernel, checkFirmware, checkDisplay, checkFiles, checkDataDisks, checkNetworks, checkServed, checkShared,
	} {
		if problem := check(spec); problem != nil {
			return problem
		}
	}
	return nil
}

func checkNames(spec *vmpb.VMSpec) *Error {
	for _, field := range []struct{ name, value string }{
		{"name", spec.GetName()}, {"namespace", spec.GetNamespace()}, {"pod_name", spec.GetPodName()},
	} {
		if field.value == "" && field.name != "pod_name" {
			return &Error{field.name, "is required"}
		}
		if field.value != "" && !nameForm.MatchString(field.value) {
			return &Error{field.name, fmt.Sprintf("%q is not a valid name", field.value)}
		}
	}
	return nil
}

func checkMode(spec *vmpb.VMSpec) *Error {
	switch mode := spec.GetMode(); mode {
	case vmpb.VMSpec_SM_RUN, vmpb.VMSpec_SM_PREPARE_IMAGE:
		return nil
	case vmpb.VMSpec_SM_INCOMING_MIGRATION:
		return checkIncoming(spec)
	case vmpb.VMSpec_SM_UNKNOWN:
		return &Error{"mode", "is required"}
	default:
		return &Error{"mode", fmt.Sprintf("%d is unknown", mode)}
	}
}

func checkIncoming(spec *vmpb.VMSpec) *Error {
	switch source := spec.GetMigrationSourcePod(); {
	case source != "" && !nameForm.MatchString(source):
		return &Error{"migration_source_pod", fmt.Sprintf("%q is not a valid name", source)}
	case source != "" && source == spec.GetPodName():
		return &Error{"migration_source_pod", "must not be this Pod"}
	}
	return nil
}

func checkShared(spec *vmpb.VMSpec) *Error {
	if disks.Unlocked(spec) {
		return &Error{"root_disk_shared", "a lock on a block device does not exclude other hosts; LM_FULL_LEASES is required"}
	}
	return nil
}

// checkServed rejects served disks that no fencing token protects.
func checkServed(spec *vmpb.VMSpec) *Error {
	if spec.GetDisksServed() && spec.GetLeaseMode() != vmpb.LeaseMode_LM_FULL_LEASES {
		return &Error{"disks_served", "requires LM_FULL_LEASES, because only these leases have fencing tokens"}
	}
	return nil
}

// checkImage checks the image only if it would be written.
func checkImage(spec *vmpb.VMSpec) *Error {
	if spec.GetMode() != vmpb.VMSpec_SM_PREPARE_IMAGE || spec.GetDisksServed() {
		return nil
	}
	return checkInitialImage("initial_image", spec.GetInitialImage())
}

func checkInitialImage(field string, image *vmpb.InitialImage) *Error {
	if problem := checkSource(field, image.GetUrl(), image.GetChecksum()); problem != nil {
		return problem
	}
	if _, known := vmpb.InitialImage_Format_name[int32(image.GetFormat())]; !known {
		return &Error{field + ".format", fmt.Sprintf("%d is unknown", image.GetFormat())}
	}
	return nil
}

// checkSource does not quote URLs, because they may contain a password.
func checkSource(field, address, checksum string) *Error {
	if address == "" {
		return &Error{field + ".url", "is required"}
	}
	parsed, err := url.Parse(address)
	if err != nil {
		return &Error{field + ".url", "is not a URL"}
	}
	switch parsed.Scheme {
	case "http", "https", "file":
	default:
		return &Error{field + ".url", fmt.Sprintf("scheme %q is not supported; expected http, https or file", parsed.Scheme)}
	}
	if !image.IsChecksum(checksum) {
		return &Error{field + ".checksum", fmt.Sprintf("%q is neither \"sha256:\" and 64, nor \"sha512:\" and 128, lower-case hexadecimal digits", checksum)}
	}
	return nil
}

func checkController(spec *vmpb.VMSpec) *Error {
	if spec.GetControllerEndpoint() == "" {
		return &Error{"controller_endpoint", "is required"}
	}
	switch mode := spec.GetLeaseMode(); mode {
	case vmpb.LeaseMode_LM_STORAGE_LOCKING:
		return nil
	case vmpb.LeaseMode_LM_UNKNOWN:
		return &Error{"lease_mode", "is required"}
	case vmpb.LeaseMode_LM_FULL_LEASES:
		return checkLease(spec)
	default:
		return &Error{"lease_mode", fmt.Sprintf("%d is unknown", mode)}
	}
}

func checkLease(spec *vmpb.VMSpec) *Error {
	if err := lease.Check(spec.GetLeaseDuration().AsDuration()); err != nil {
		return &Error{"lease_duration", err.Error()}
	}
	return nil
}

func checkGuest(spec *vmpb.VMSpec) *Error {
	if _, problem := parseAddresses(spec.GetAddress()); problem != nil {
		return problem
	}
	if uuid := spec.GetUuid(); uuid != "" && !uuidForm.MatchString(uuid) {
		return &Error{"uuid", fmt.Sprintf("%q is not a lower-case UUID", uuid)}
	}
	if cpus := spec.GetResources().GetCpus(); cpus > maxCPUs {
		return &Error{"resources.cpus", fmt.Sprintf("%d is more than %d", cpus, maxCPUs)}
	}
	memory := spec.GetResources().GetMemoryBytes()
	if memory != 0 && (memory < minMemoryBytes || memory > maxMemoryBytes) {
		return &Error{"resources.memory_bytes", fmt.Sprintf("%d is not between 1 MiB and 64 TiB", memory)}
	}
	return nil
}

// Limits of VMSpec.shutdown_time.
const (
	minShutdownTime = time.Second
	maxShutdownTime = time.Hour
)

func checkShutdown(spec *vmpb.VMSpec) *Error {
	if spec.GetShutdownTime() == nil {
		return nil
	}
	if limit := spec.GetShutdownTime().AsDuration(); limit < minShutdownTime || limit > maxShutdownTime {
		return &Error{"shutdown_time", fmt.Sprintf("%s is not between %s and %s", limit, minShutdownTime, maxShutdownTime)}
	}
	return nil
}

func checkKernel(spec *vmpb.VMSpec) *Error {
	boot := spec.GetKernelBoot()
	if boot == nil {
		return nil
	}
	if problem := checkSource("kernel_boot.kernel", boot.GetKernel().GetUrl(), boot.GetKernel().GetChecksum()); problem != nil {
		return problem
	}
	if initrd := boot.GetInitrd(); initrd != nil {
		if problem := checkSource("kernel_boot.initrd", initrd.GetUrl(), initrd.GetChecksum()); problem != nil {
			return problem
		}
	}
	line := boot.GetCommandLine()
	if len(line) > maxCommandLine || strings.ContainsRune(line, 0) {
		return &Error{"kernel_boot.command_line", fmt.Sprintf("has a NUL byte or more than %d bytes", maxCommandLine)}
	}
	return nil
}

func checkFirmware(spec *vmpb.VMSpec) *Error {
	firmware := spec.GetFirmware()
	if _, known := vmpb.VMSpec_Firmware_name[int32(firmware)]; !known {
		return &Error{"firmware", fmt.Sprintf("%d is unknown", firmware)}
	}
	memory := spec.GetResources().GetMemoryBytes()
	switch {
	case firmware != vmpb.VMSpec_FIRMWARE_UEFI:
		return nil
	case spec.GetKernelBoot() != nil:
		return &Error{"firmware", "must be FIRMWARE_BIOS with kernel_boot, which boots without firmware"}
	case memory != 0 && memory < minUEFIBytes:
		return &Error{"resources.memory_bytes", fmt.Sprintf("%d is less than 64 MiB, which FIRMWARE_UEFI requires", memory)}
	}
	return nil
}

func checkDisplay(spec *vmpb.VMSpec) *Error {
	if _, known := vmpb.VMSpec_Display_name[int32(spec.GetDisplay())]; !known {
		return &Error{"display", fmt.Sprintf("%d is unknown", spec.GetDisplay())}
	}
	return nil
}

func checkFiles(spec *vmpb.VMSpec) *Error {
	if problem := checkPath("user_data.path", spec.GetUserData().GetPath()); problem != nil {
		return problem
	}
	if size := spec.GetRootDiskBytes(); size > maxDiskBytes {
		return &Error{"root_disk_bytes", fmt.Sprintf("%d is more than 4 PiB", size)}
	}
	return checkPath("root_disk_path", spec.GetRootDiskPath())
}

// checkDataDisks checks images only if they would be written.
func checkDataDisks(spec *vmpb.VMSpec) *Error {
	if count := len(spec.GetDataDisks()); count > maxDataDisks {
		return &Error{"data_disks", fmt.Sprintf("%d disks exceed the maximum of %d", count, maxDataDisks)}
	}
	names := map[string]bool{}
	for i, data := range spec.GetDataDisks() {
		field := fmt.Sprintf("data_disks[%d]", i)
		if names[data.GetName()] {
			return &Error{field + ".name", fmt.Sprintf("%q is the name of more than one disk", data.GetName())}
		}
		names[data.GetName()] = true
		if problem := checkDataDisk(field, data); problem != nil {
			return problem
		}
	}
	return nil
}

func checkDataDisk(field string, data *vmpb.DataDisk) *Error {
	switch {
	case !dataDiskForm.MatchString(data.GetName()):
		return &Error{field + ".name", fmt.Sprintf("%q does not consist of 1 to 20 lower-case letters, digits and hyphens", data.GetName())}
	case data.GetPath() == "":
		return &Error{field + ".path", "is required"}
	case data.GetBytes() > maxDiskBytes:
		return &Error{field + ".bytes", fmt.Sprintf("%d is more than 4 PiB", data.GetBytes())}
	}
	problem := checkPath(field+".path", data.GetPath())
	if problem == nil && data.GetInitialImage() != nil && !data.GetExists() {
		problem = checkInitialImage(field+".initial_image", data.GetInitialImage())
	}
	return problem
}

func checkNetworks(spec *vmpb.VMSpec) *Error {
	if count := len(spec.GetNetworks()); count > maxNetworks {
		return &Error{"networks", fmt.Sprintf("%d networks exceed the maximum of %d", count, maxNetworks)}
	}
	used := map[string]bool{} // names and interfaces: no name contains a slash
	for i, network := range spec.GetNetworks() {
		field := fmt.Sprintf("networks[%d]", i)
		name, device := network.GetName(), network.GetInterface()
		switch {
		case !networkForm.MatchString(name):
			return &Error{field + ".name", fmt.Sprintf("%q does not consist of 1 to 63 lower-case letters, digits and hyphens", name)}
		case !interfaceForm.MatchString(device):
			return &Error{field + ".interface", fmt.Sprintf("%q is not the name of a network interface", device)}
		case used[name]:
			return &Error{field + ".name", fmt.Sprintf("%q is the name of more than one network", name)}
		case used["/"+device]:
			return &Error{field + ".interface", fmt.Sprintf("%q is the interface of more than one network", device)}
		}
		used[name], used["/"+device] = true, true
		if text := network.GetMac(); text != "" && ParseMAC(text) == nil {
			return &Error{field + ".mac", fmt.Sprintf("%q is not the Ethernet address of a network interface", text)}
		}
	}
	return nil
}

// ParseMAC parses NetworkInterface.mac. It returns nil if the text is not the Ethernet address of a network interface.
func ParseMAC(text string) net.HardwareAddr {
	const size, group = 6, 1
	address, err := net.ParseMAC(text)
	if err != nil || len(address) != size || address[0]&group != 0 || bytes.Equal(address, make([]byte, size)) {
		return nil
	}
	return address
}

// checkPath accepts only clean absolute paths. A path therefore cannot leave its root by "..".
func checkPath(field, name string) *Error {
	if name == "" {
		return nil
	}
	if _, err := confine.Name(name); err != nil || !path.IsAbs(name) {
		return &Error{field, fmt.Sprintf("%q is not a clean absolute path", name)}
	}
	return nil
}

// Addresses are the addresses of a VM by IP version. An address is invalid if the VM does not have one.
type Addresses struct{ V4, V6 netip.Addr }

// ParseAddresses parses VMSpec.address, which contains plain addresses and prefixes of full length. The error is
// an *Error.
func ParseAddresses(texts []string) (Addresses, error) {
	all, problem := parseAddresses(texts)
	if problem != nil {
		return Addresses{}, problem
	}
	return all, nil
}

func parseAddresses(texts []string) (Addresses, *Error) {
	var all Addresses
	for i, text := range texts {
		field := fmt.Sprintf("address[%d]", i)
		address, problem := parseAddress(text)
		if problem != "" {
			return Addresses{}, &Error{field, fmt.Sprintf("%q %s", text, problem)}
		}
		place := &all.V6
		if address.Is4() {
			place = &all.V4
		}
		if place.IsValid() {
			return Addresses{}, &Error{field, fmt.Sprintf("%q is a second address of the same IP version", text)}
		}
		*place = address
	}
	return all, nil
}

func parseAddress(text string) (netip.Addr, string) {
	address, err := netip.ParseAddr(text)
	if prefix, notPrefix := netip.ParsePrefix(text); notPrefix == nil {
		if !prefix.IsSingleIP() {
			return netip.Addr{}, "is more than one address"
		}
		address, err = prefix.Addr(), nil
	}
	switch {
	case err != nil:
		return netip.Addr{}, "is not an IP address"
	case address.Zone() != "" || address.Is4In6():
		return netip.Addr{}, "is not a plain IP address"
	case specialaddress.Kind(address) != "":
		return netip.Addr{}, "is not an address that a VM can have"
	default:
		return address, ""
	}
}
