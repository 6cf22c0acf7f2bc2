package qemu

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
)

// DefaultUEFI is where Debian's package ovmf installs the UEFI firmware OVMF.
const DefaultUEFI = "/usr/share/ovmf/OVMF.fd"

// ErrNoUEFI means that the host does not have the UEFI firmware.
var ErrNoUEFI = errors.New("the UEFI firmware is not installed")

// UEFI is a UEFI firmware. It keeps its variables in the guest's memory, so they are lost when QEMU exits.
type UEFI struct {
	// Path is the path of the file with the firmware. Required.
	Path string
	// Digest is the SHA-256 digest of the file, in lower-case hexadecimal digits. A guest can move only between
	// machines with the same firmware.
	Digest string
}

// FindUEFI returns the UEFI firmware at a path; the default is DefaultUEFI. Errors: ErrNoUEFI, and those of the file
// system.
func FindUEFI(path string) (*UEFI, error) {
	if path == "" {
		path = DefaultUEFI
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s does not exist; install the package ovmf on the host, or in the hypervisor's image", ErrNoUEFI, path)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the UEFI firmware: %w", err)
	}
	digest := sha256.Sum256(content)
	return &UEFI{Path: path, Digest: hex.EncodeToString(digest[:])}, nil
}
