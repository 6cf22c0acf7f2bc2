package qemu

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
)

// Hardware returns a one-line description of the hardware that the guest sees. A guest can move only between
// machines with the same hardware.
func (c Config) Hardware() (string, error) {
	parts := []string{
		MachineType, string(c.Processor.Accelerator), c.Processor.model(),
		fmt.Sprintf("%d CPUs", c.Processor.Count), fmt.Sprintf("%d MiB", c.MemoryMiB),
	}
	if c.UUID != "" {
		parts = append(parts, c.UUID)
	}
	if c.Disks.Seed.Path != "" {
		size, err := sizeOf(c.Disks.Seed.Path)
		if err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprintf("seed of %d bytes", size))
	}
	for _, disk := range c.Disks.Data {
		parts = append(parts, "data disk "+disk.Serial)
	}
	if c.UEFI != nil {
		parts = append(parts, "UEFI firmware sha256:"+c.UEFI.Digest)
	}
	if c.Kernel != nil {
		parts = append(parts, "kernel")
	}
	if c.Display {
		parts = append(parts, fmt.Sprintf("display with %d MiB", videoMiB))
	}
	if n := c.Network; n != nil {
		parts = append(parts, n.MAC.String(), n.IPv4.String())
		if n.IPv6.IsValid() {
			parts = append(parts, n.IPv6.String())
		}
	}
	for _, network := range c.Interfaces {
		parts = append(parts, "network interface "+network.MAC.String())
	}
	for _, item := range c.Firmware {
		size, err := sizeOf(item.Path)
		if err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprintf("%s of %d bytes", item.Name, size))
	}
	return strings.Join(parts, ", "), nil
}

func sizeOf(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("describing the guest's hardware: %w", err)
	}
	return info.Size(), nil
}

// model returns the name of the processor that the guest sees.
func (p Processor) model() string {
	if p.Accelerator != KVM {
		return plainProcessor
	}
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		cpuinfo = nil // as in DetectAccelerator
	}
	return hostModel(string(cpuinfo))
}

// hostModel returns the name of a host's processor, with a checksum of its features.
func hostModel(cpuinfo string) string {
	var model, flags string
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			model = strings.TrimSpace(value)
		case "flags":
			flags = value
		}
	}
	sum := sha256.Sum256([]byte(flags))
	return fmt.Sprintf("%s (%x)", model, sum[:4])
}
