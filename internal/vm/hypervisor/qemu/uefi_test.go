package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindUEFI(t *testing.T) {
	path := filepath.Join(t.TempDir(), "OVMF.fd")
	if found, err := FindUEFI(path); !errors.Is(err, ErrNoUEFI) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "package ovmf") {
		t.Errorf("without a file: got %+v, %v; want ErrNoUEFI that names the path and the package", found, err)
	}
	must(t, os.WriteFile(path, []byte("abc"), 0o600))
	found, err := FindUEFI(path)
	must(t, err)
	// The digest is from FIPS 180-4's examples.
	want := UEFI{Path: path, Digest: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}
	if *found != want {
		t.Errorf("got %+v, want %+v", *found, want)
	}
}
