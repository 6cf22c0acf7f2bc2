package qemu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// multiboot returns the smallest kernel that QEMU boots directly. It prints its command line, which the loader has
// stored at [ebx+16], on the serial port.
func multiboot() []byte {
	const (
		magic, flags = 0x1badb002, 1 << 16 // the following addresses are valid
		base         = 1 << 20
		headerSize   = 32
	)
	var image []byte
	for _, field := range []uint32{
		magic, flags, 1<<32 - magic - flags,
		base, base, 0, 0, base + headerSize, // header, load, whole file, no bss, entry
	} {
		image = binary.LittleEndian.AppendUint32(image, field)
	}
	return append(image,
		0xfc,             // cld
		0x8b, 0x73, 0x10, // mov esi, [ebx+16]
		0xac,       // next: lodsb
		0x84, 0xc0, // test al, al
		0x74, 0x14, // jz halt
		0x88, 0xc4, // mov ah, al
		0x66, 0xba, 0xfd, 0x03, // mov dx, 0x3fd
		0xec,       // again: in al, dx
		0xa8, 0x20, // test al, 0x20
		0x74, 0xfb, // jz again
		0x88, 0xe0, // mov al, ah
		0x66, 0xba, 0xf8, 0x03, // mov dx, 0x3f8
		0xee,       // out dx, al
		0xeb, 0xe7, // jmp next
		0xf4,       // halt: hlt
		0xeb, 0xfd, // jmp halt
	)
}

func TestKernel_DirectBootPassesCommandLine(t *testing.T) {
	tier.All(t)
	const cmdline = `console=ttyS0,115200 root="a,,b" -no-reboot file=x END`
	config := machine(t, nil)
	config.Kernel = &Kernel{Path: filepath.Join(t.TempDir(), "kernel,a=b"), Cmdline: cmdline}
	must(t, os.WriteFile(config.Kernel.Path, multiboot(), 0o600))
	p := start(t, config)
	console := attach(t, p)
	must(t, p.Cont(bounded(t)))
	if got := string(console.until("END")); got != config.Kernel.Path+" "+cmdline[:len(cmdline)-len("END")] {
		t.Errorf("command line = %q, want the kernel's path and %q", got, cmdline)
	}
}
