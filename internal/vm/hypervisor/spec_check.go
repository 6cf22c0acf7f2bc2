package hypervisor

import (
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strings"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Limits of a VM. They are above what QEMU can do with one machine, and keep numbers
// from overflowing on their way there.
const (
	maxCPUs        = 4096
	minMemoryBytes = 1 << 20
	maxMemoryBytes = 64 << 40
	maxDiskBytes   = 1 << 52
	// maxCommandLine is what Linux guests read of theirs, at most, on any platform.
	maxCommandLine = 64 << 10
)

var (
	uuidForm     = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	checksumForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	// nameForm is wider than what Kubernetes allows, and narrow enough for logs,
	// command lines and host names.
	nameForm = regexp.MustCompile(`^[0-9A-Za-z]([0-9A-Za-z._-]{0,251}[0-9A-Za-z])?$`)
)

// checkSpec returns the first problem, nil if there is none.
func checkSpec(spec *vmpb.VMSpec) *SpecError {
	for _, check := range []func(*vmpb.VMSpec) *SpecError{
		checkNames, checkMode, checkImage, checkAddresses, checkController, checkUUID,
		checkResources, checkKernel, checkUserData, checkDisk,
	} {
		if problem := check(spec); problem != nil {
			return problem
		}
	}
	return nil
}

func checkNames(spec *vmpb.VMSpec) *SpecError {
	for _, required := range []struct{ field, name string }{
		{"name", spec.GetName()}, {"namespace", spec.GetNamespace()},
	} {
		if required.name == "" {
			return &SpecError{required.field, "is required"}
		}
		if !nameForm.MatchString(required.name) {
			return &SpecError{required.field, fmt.Sprintf("%q is not a name", required.name)}
		}
	}
	if name := spec.GetPodName(); name != "" && !nameForm.MatchString(name) {
		return &SpecError{"pod_name", fmt.Sprintf("%q is not a name", name)}
	}
	return nil
}

func checkMode(spec *vmpb.VMSpec) *SpecError {
	switch mode := spec.GetMode(); mode {
	case vmpb.VMSpec_SM_RUN, vmpb.VMSpec_SM_PREPARE_IMAGE:
		return nil
	case vmpb.VMSpec_SM_UNKNOWN:
		return &SpecError{"mode", "is required"}
	case vmpb.VMSpec_SM_INCOMING_MIGRATION:
		return &SpecError{"mode", "SM_INCOMING_MIGRATION is not implemented"}
	default:
		return &SpecError{"mode", fmt.Sprintf("%d is unknown", mode)}
	}
}

// checkImage looks at the image only where it would be written.
func checkImage(spec *vmpb.VMSpec) *SpecError {
	if spec.GetMode() != vmpb.VMSpec_SM_PREPARE_IMAGE {
		return nil
	}
	image := spec.GetInitialImage()
	if problem := checkSource("initial_image", image.GetUrl(), image.GetChecksum()); problem != nil {
		return problem
	}
	if _, known := vmpb.InitialImage_Format_name[int32(image.GetFormat())]; !known {
		return &SpecError{"initial_image.format", fmt.Sprintf("%d is unknown", image.GetFormat())}
	}
	return nil
}

// checkSource does not quote URLs: they may hold a password.
func checkSource(field, address, checksum string) *SpecError {
	if address == "" {
		return &SpecError{field + ".url", "is required"}
	}
	parsed, err := url.Parse(address)
	if err != nil {
		return &SpecError{field + ".url", "is not a URL"}
	}
	switch parsed.Scheme {
	case "http", "https", "file":
	default:
		return &SpecError{field + ".url", fmt.Sprintf("the scheme %q is none of http, https and file", parsed.Scheme)}
	}
	if checksum != "" && !checksumForm.MatchString(checksum) {
		return &SpecError{field + ".checksum", fmt.Sprintf("%q is not sha256: and 64 lower-case hexadecimal digits", checksum)}
	}
	return nil
}

func checkAddresses(spec *vmpb.VMSpec) *SpecError {
	_, problem := parseAddresses(spec.GetAddress())
	return problem
}

func checkController(spec *vmpb.VMSpec) *SpecError {
	if spec.GetControllerEndpoint() == "" {
		return &SpecError{"controller_endpoint", "is required"}
	}
	switch mode := spec.GetLeaseMode(); mode {
	case vmpb.LeaseMode_LM_STORAGE_LOCKING:
		return nil
	case vmpb.LeaseMode_LM_UNKNOWN:
		return &SpecError{"lease_mode", "is required"}
	case vmpb.LeaseMode_LM_FULL_LEASES:
		return &SpecError{"lease_mode", "LM_FULL_LEASES is not implemented"}
	default:
		return &SpecError{"lease_mode", fmt.Sprintf("%d is unknown", mode)}
	}
}

func checkUUID(spec *vmpb.VMSpec) *SpecError {
	if uuid := spec.GetUuid(); uuid != "" && !uuidForm.MatchString(uuid) {
		return &SpecError{"uuid", fmt.Sprintf("%q is not a UUID in lower case", uuid)}
	}
	return nil
}

func checkResources(spec *vmpb.VMSpec) *SpecError {
	if cpus := spec.GetResources().GetCpus(); cpus > maxCPUs {
		return &SpecError{"resources.cpus", fmt.Sprintf("%d is more than %d", cpus, maxCPUs)}
	}
	memory := spec.GetResources().GetMemoryBytes()
	if memory != 0 && (memory < minMemoryBytes || memory > maxMemoryBytes) {
		return &SpecError{"resources.memory_bytes", fmt.Sprintf("%d is not between 1 MiB and 64 TiB", memory)}
	}
	return nil
}

func checkKernel(spec *vmpb.VMSpec) *SpecError {
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
		return &SpecError{"kernel_boot.command_line", fmt.Sprintf("has a NUL byte or more than %d bytes", maxCommandLine)}
	}
	return nil
}

func checkUserData(spec *vmpb.VMSpec) *SpecError {
	return checkPath("user_data.path", spec.GetUserData().GetPath())
}

func checkDisk(spec *vmpb.VMSpec) *SpecError {
	if size := spec.GetRootDiskBytes(); size > maxDiskBytes {
		return &SpecError{"root_disk_bytes", fmt.Sprintf("%d is more than 4 PiB", size)}
	}
	return checkPath("root_disk_path", spec.GetRootDiskPath())
}

// checkPath takes absolute paths only: the process has no meaningful working
// directory. A path that leaves its root by ".." is refused with the unclean ones.
func checkPath(field, name string) *SpecError {
	if name == "" {
		return nil
	}
	if !path.IsAbs(name) || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return &SpecError{field, fmt.Sprintf("%q is not an absolute path in its shortest form", name)}
	}
	return nil
}

// addresses are those of a VM, by IP version; invalid ones for those it has not.
type addresses struct{ v4, v6 netip.Addr }

// parseAddresses takes plain addresses, and prefixes that cover a whole one.
func parseAddresses(texts []string) (addresses, *SpecError) {
	var all addresses
	for i, text := range texts {
		field := fmt.Sprintf("address[%d]", i)
		address, problem := parseAddress(text)
		if problem != "" {
			return addresses{}, &SpecError{field, fmt.Sprintf("%q %s", text, problem)}
		}
		place := &all.v6
		if address.Is4() {
			place = &all.v4
		}
		if place.IsValid() {
			return addresses{}, &SpecError{field, fmt.Sprintf("%q is a second address of its IP version", text)}
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
	case address.IsUnspecified() || address.IsMulticast() || address.IsLoopback():
		return netip.Addr{}, "is not an address that a VM can have"
	default:
		return address, ""
	}
}
