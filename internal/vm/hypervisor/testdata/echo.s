# A guest of 512 bytes: it prints its banner and then echoes its input. It powers off through
# ACPI when it receives the byte 4 or when the power button is pressed.
#
# The firmware loads the boot sector to 0x7c00 and jumps to it in 16-bit mode. The serial
# port COM1 is at 0x3f8; its line status at 0x3fd shows that a byte has arrived (bit 0) and
# that the port accepts a byte (bit 5).
#
# To assemble it:
#   as --32 -o echo.o echo.s && objcopy -O binary -j .text echo.o echo.img
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
	mov dx, 0x602 # enable the power button
	mov ax, 0x100 # event
	out dx, ax
	mov si, offset origin + (banner - start)
next:
	lodsb
	test al, al
	jz poll
	call putc
	jmp next
poll:
	mov dx, 0x600 # pending events
	in ax, dx
	test ah, 1
	jnz off
	mov dx, 0x3fd
	in al, dx
	test al, 1
	jz poll
	mov dx, 0x3f8
	in al, dx
	cmp al, 4
	je off
	call putc
	jmp poll
off:
	mov dx, 0x604 # sleep control
	mov ax, 0x2000 # soft off
	out dx, ax
	jmp poll
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
	.asciz "ready\n"
	.org 510
	.byte 0x55, 0xaa
