// Package bootsector has tiny guests for tests with real machines. They take 512 bytes of
// a disk, and no time to boot.
package bootsector

// The guests are boot sectors: the firmware loads 512 bytes from the disk to 0x7c00
// and jumps there, in 16 bit mode. They talk to the serial port COM1 at 0x3f8, whose
// line status at 0x3fd says that a byte came (bit 0) and that one may go (bit 5).
type program []byte

// prologue makes data, stack and string direction known.
var prologue = program{
	0xfa,       // 7c00 cli
	0x31, 0xc0, // 7c01 xor ax, ax
	0x8e, 0xd8, // 7c03 mov ds, ax
	0x8e, 0xd0, // 7c05 mov ss, ax
	0xbc, 0x00, 0x7c, // 7c07 mov sp, 0x7c00
	0xfc, // 7c0a cld
}

// putc sends al to the serial port, as soon as that has taken the byte before.
var putc = program{
	0x88, 0xc4, // mov ah, al
	0xba, 0xfd, 0x03, // mov dx, 0x3fd
	0xec,       // again: in al, dx
	0xa8, 0x20, // test al, 0x20
	0x74, 0xfb, // jz again
	0x88, 0xe0, // mov al, ah
	0xba, 0xf8, 0x03, // mov dx, 0x3f8
	0xee, // out dx, al
	0xc3, // ret
}

const (
	// CounterBanner is what Counter prints first.
	CounterBanner = "boot\n"
	// EchoBanner is what Echo prints first.
	EchoBanner = "ready\n"
	// PowerOffKey makes Echo power itself off.
	PowerOffKey = "\x04"
)

// Counter prints its banner and then counts from zero for ever, one number per line,
// in eight hexadecimal digits written as the letters a to p.
var Counter = assemble(CounterBanner, prologue, program{
	0xbe, 0x47, 0x7c, // 7c0b mov si, banner
	0xac,       // 7c0e next: lodsb
	0x84, 0xc0, // 7c0f test al, al
	0x74, 0x05, // 7c11 jz count
	0xe8, 0x20, 0x00, // 7c13 call putc
	0xeb, 0xf6, // 7c16 jmp next
	0x66, 0x31, 0xdb, // 7c18 count: xor ebx, ebx
	0xb9, 0x08, 0x00, // 7c1b line: mov cx, 8
	0x66, 0xc1, 0xc3, 0x04, // 7c1e digit: rol ebx, 4
	0x88, 0xd8, // 7c22 mov al, bl
	0x24, 0x0f, // 7c24 and al, 15
	0x04, 'a', // 7c26 add al, 'a'
	0xe8, 0x0b, 0x00, // 7c28 call putc
	0xe2, 0xf1, // 7c2b loop digit
	0xb0, '\n', // 7c2d mov al, '\n'
	0xe8, 0x04, 0x00, // 7c2f call putc
	0x66, 0x43, // 7c32 inc ebx
	0xeb, 0xe5, // 7c34 jmp line
}, putc) // 7c36

// Echo prints its banner and then sends back what it gets. It powers off through
// ACPI on PowerOffKey, and when the power button is pressed.
var Echo = assemble(EchoBanner, prologue, program{
	0xba, 0x02, 0x06, // 7c0b mov dx, 0x602: which events count
	0xb8, 0x00, 0x01, // 7c0e mov ax, 0x100: the power button
	0xef,             // 7c11 out dx, ax
	0xbe, 0x57, 0x7c, // 7c12 mov si, banner
	0xac,       // 7c15 next: lodsb
	0x84, 0xc0, // 7c16 test al, al
	0x74, 0x05, // 7c18 jz poll
	0xe8, 0x29, 0x00, // 7c1a call putc
	0xeb, 0xf6, // 7c1d jmp next
	0xba, 0x00, 0x06, // 7c1f poll: mov dx, 0x600: events that happened
	0xed,             // 7c22 in ax, dx
	0xf6, 0xc4, 0x01, // 7c23 test ah, 1
	0x75, 0x15, // 7c26 jnz off
	0xba, 0xfd, 0x03, // 7c28 mov dx, 0x3fd
	0xec,       // 7c2b in al, dx
	0xa8, 0x01, // 7c2c test al, 1
	0x74, 0xef, // 7c2e jz poll
	0xba, 0xf8, 0x03, // 7c30 mov dx, 0x3f8
	0xec,       // 7c33 in al, dx
	0x3c, 0x04, // 7c34 cmp al, PowerOffKey
	0x74, 0x05, // 7c36 je off
	0xe8, 0x0b, 0x00, // 7c38 call putc
	0xeb, 0xe2, // 7c3b jmp poll
	0xba, 0x04, 0x06, // 7c3d off: mov dx, 0x604: sleep control
	0xb8, 0x00, 0x20, // 7c40 mov ax, 0x2000: soft off, now
	0xef,       // 7c43 out dx, ax
	0xeb, 0xd9, // 7c44 jmp poll
}, putc) // 7c46

// assemble joins the parts and the banner to a boot sector, with the signature that
// the firmware looks for.
func assemble(banner string, parts ...program) []byte {
	var sector program
	for _, part := range parts {
		sector = append(sector, part...)
	}
	sector = append(append(sector, banner...), 0)
	sector = append(sector, make(program, 510-len(sector))...)
	return append(sector, 0x55, 0xaa)
}
