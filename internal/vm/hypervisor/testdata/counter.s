# A guest of 512 bytes: it prints its banner and then counts from zero forever. It prints
# one number per line, in eight hexadecimal digits written as the letters a to p.
#
# The firmware loads the boot sector to 0x7c00 and jumps to it in 16-bit mode. The serial
# port COM1 is at 0x3f8; bit 5 of its line status at 0x3fd is set when the port accepts a
# byte.
#
# To assemble it:
#   as --32 -o counter.o counter.s && objcopy -O binary -j .text counter.o counter.img
	.intel_syntax noprefix
	.code16
	.equ origin, 0x7c00
start:
	cli
	xor ax, ax
	mov ds, ax
	mov ss, ax
	mov sp, offset origin
	cld
	sti # the firmware prints the end of its output at an interrupt
	hlt
	cli
	mov si, offset origin + (banner - start)
next:
	lodsb
	test al, al
	jz count
	call putc
	jmp next
count:
	xor ebx, ebx
line:
	mov cx, 8
digit:
	rol ebx, 4
	mov al, bl
	and al, 15
	add al, 'a'
	call putc
	loop digit
	mov al, '\n'
	call putc
	inc ebx
	jmp line
putc: # sends al
	mov ah, al
	mov dx, 0x3fd
again:
	in al, dx
	test al, 0x20
	jz again
	mov al, ah
	mov dx, 0x3f8
	out dx, al
	ret
banner:
	.asciz "boot\n"
	.org 510
	.byte 0x55, 0xaa
