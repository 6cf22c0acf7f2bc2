package qemu

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"unicode/utf8"
)

// FieldError says which input is wrong. Nothing was started.
type FieldError struct {
	// Field is the path of the field in Config, such as "network.mac".
	Field string
	// Problem is what is wrong with it, for people.
	Problem string
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// maxFirmwareName is QEMU's limit for names in fw_cfg, without the final NUL.
const maxFirmwareName = 55

var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// Validate returns a *FieldError for the first thing in the configuration that QEMU
// would refuse or misread, nil if there is none. It does not look at files.
func (c Config) Validate() error {
	for _, check := range []func(Config) *FieldError{
		checkName, checkUUID, checkSize, checkDisks, checkKernel, checkNetwork, checkFirmware,
	} {
		if problem := check(c); problem != nil {
			return problem
		}
	}
	return nil
}

func checkName(c Config) *FieldError {
	if c.Name == "" {
		return &FieldError{"name", "is required"}
	}
	return checkText("name", c.Name)
}

// checkText refuses what cannot be an argument of a process, and what JSON cannot
// carry: a path would silently become another one.
func checkText(field, text string) *FieldError {
	if strings.ContainsRune(text, 0) {
		return &FieldError{field, "contains a NUL byte"}
	}
	if !utf8.ValidString(text) {
		return &FieldError{field, "is not valid UTF-8"}
	}
	return nil
}

func checkUUID(c Config) *FieldError {
	if c.UUID != "" && !uuidForm.MatchString(c.UUID) {
		return &FieldError{"uuid", fmt.Sprintf("%q is not a UUID", c.UUID)}
	}
	return nil
}

func checkSize(c Config) *FieldError {
	if c.Processor.Count < 1 {
		return &FieldError{"processor.count", fmt.Sprintf("%d is less than 1", c.Processor.Count)}
	}
	if c.MemoryMiB < 1 {
		return &FieldError{"memoryMiB", fmt.Sprintf("%d is less than 1", c.MemoryMiB)}
	}
	switch c.Processor.Accelerator {
	case KVM, TCG:
		return nil
	default:
		return &FieldError{"processor.accelerator", fmt.Sprintf("%q is neither kvm nor tcg", c.Processor.Accelerator)}
	}
}

func checkDisks(c Config) *FieldError {
	if c.Disks.Root.Path == "" {
		return &FieldError{"disks.root.path", "is required"}
	}
	if problem := checkText("disks.root.path", c.Disks.Root.Path); problem != nil {
		return problem
	}
	return checkText("disks.seed.path", c.Disks.Seed.Path)
}

func checkKernel(c Config) *FieldError {
	if c.Kernel == nil {
		return nil
	}
	if c.Kernel.Path == "" {
		return &FieldError{"kernel.path", "is required"}
	}
	for _, field := range []struct{ name, text string }{
		{"kernel.path", c.Kernel.Path}, {"kernel.initrd", c.Kernel.Initrd}, {"kernel.cmdline", c.Kernel.Cmdline},
	} {
		if problem := checkText(field.name, field.text); problem != nil {
			return problem
		}
	}
	return nil
}

func checkNetwork(c Config) *FieldError {
	if c.Network == nil {
		return nil
	}
	return c.Network.check()
}

// Validate returns a *FieldError for the first thing in the network that QEMU would
// refuse, or could not carry; nil if there is none.
func (n UserNetwork) Validate() error {
	if problem := n.check(); problem != nil {
		return problem
	}
	return nil
}

func (n UserNetwork) check() *FieldError {
	if len(n.MAC) != 6 || n.MAC[0]&1 != 0 {
		return &FieldError{"network.mac", fmt.Sprintf("%q is not the address of one Ethernet card", n.MAC)}
	}
	if !fits4(n.IPv4) {
		return &FieldError{"network.ipv4", fmt.Sprintf("%s is not a masked IPv4 network of 8 to 28 bits", n.IPv4)}
	}
	if n.IPv6.IsValid() && !fits6(n.IPv6) {
		return &FieldError{"network.ipv6", fmt.Sprintf("%s is not a masked IPv6 network of 64 bits", n.IPv6)}
	}
	if n.Address4.IsValid() && !n.carries(n.Address4, n.IPv4) {
		return &FieldError{"network.address4", fmt.Sprintf("%s is not free for a guest in %s", n.Address4, n.IPv4)}
	}
	if n.Address6.IsValid() && !n.carries(n.Address6, n.IPv6) {
		return &FieldError{"network.address6", fmt.Sprintf("%s is not free for a guest in %s", n.Address6, n.IPv6)}
	}
	return checkForwards(n.Forwards)
}

// carries reports whether the address is of the network and has no other meaning there.
func (n UserNetwork) carries(address netip.Addr, network netip.Prefix) bool {
	if !network.Contains(address) || address == network.Addr() {
		return false
	}
	switch address {
	case n.Gateway4(), n.DNS4(), n.Gateway6():
		return false
	}
	// The last address of an IPv4 network is everybody's.
	return address.Is6() || network.Contains(address.Next())
}

// fits4 leaves room for the addresses that UserNetwork gives out.
func fits4(network netip.Prefix) bool {
	return network.Addr().Is4() && network == network.Masked() && network.Bits() >= 8 && network.Bits() <= 28
}

// fits6 asks for the size that guests can choose addresses in by themselves.
func fits6(network netip.Prefix) bool {
	address := network.Addr()
	return address.Is6() && !address.Is4In6() && network == network.Masked() && network.Bits() == 64
}

func checkForwards(forwards []Forward) *FieldError {
	for i, forward := range forwards {
		field := fmt.Sprintf("network.forwards[%d]", i)
		if !forward.Host.Addr().Is4() || forward.Host.Port() == 0 {
			return &FieldError{field + ".host", fmt.Sprintf("%s is not an IPv4 address with a port", forward.Host)}
		}
		if forward.Port == 0 {
			return &FieldError{field + ".port", "is required"}
		}
	}
	return nil
}

func checkFirmware(c Config) *FieldError {
	names := map[string]bool{}
	for i, item := range c.Firmware {
		field := fmt.Sprintf("firmware[%d]", i)
		if problem := checkFirmwareName(item.Name); problem != "" {
			return &FieldError{field + ".name", problem}
		}
		if names[item.Name] {
			return &FieldError{field + ".name", fmt.Sprintf("%q is there twice", item.Name)}
		}
		names[item.Name] = true
		if item.Path == "" {
			return &FieldError{field + ".path", "is required"}
		}
		if problem := checkText(field+".path", item.Path); problem != nil {
			return problem
		}
	}
	return nil
}

func checkFirmwareName(name string) string {
	if name == "" || len(name) > maxFirmwareName {
		return fmt.Sprintf("%q does not have 1 to %d characters", name, maxFirmwareName)
	}
	for _, letter := range []byte(name) {
		if letter < ' ' || letter > '~' {
			return fmt.Sprintf("%q has characters that are not printable ASCII", name)
		}
	}
	return ""
}
