# A guest of 512 bytes: it prints its banner, waits for a letter, and then counts from zero forever. It writes
# each number and the letter to its disk through the firmware and then prints the number on its own line, in
# eight hexadecimal digits written as the letters a to p. Number n of the guest with the letter a is at the
# beginning of sector 2048 + n modulo 2048; for the letter b, it is 2048 sectors later. After a failed write,
# it prints an E and repeats the write.
#
# The firmware loads the boot sector to 0x7c00 and jumps to it in 16-bit mode, with the number of
# the disk in dl. The serial port COM1 is at 0x3f8; its line status at 0x3fd shows that a byte has
# arrived (bit 0) and that the port accepts a byte (bit 5).
#
# To assemble it:
#   as --32 -o twin.o twin.s && objcopy -O binary -j .text twin.o twin.img
	.intel_syntax noprefix
	.code16
	.equ origin, 0x7c00
	.equ buffer, 0x8000
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
	mov byte ptr [origin + (drive - start)], dl
	mov si, offset origin + (banner - start)
next:
	lodsb
	test al, al
	jz poll
	call putc
	jmp next
poll:
	mov dx, 0x3fd
	in al, dx
	test al, 1
	jz poll
	mov dx, 0x3f8
	in al, dx
	mov byte ptr [buffer + 4], al
	and eax, 2 # a is 0x61, b is 0x62
	shl eax, 10
	add eax, 2048
	mov dword ptr [origin + (first - start)], eax
	xor ebx, ebx
write:
	mov dword ptr [buffer], ebx
	mov eax, ebx
	and eax, 2047
	add eax, dword ptr [origin + (first - start)]
	mov dword ptr [origin + (block - start)], eax
	mov si, offset origin + (packet - start)
	mov dl, byte ptr [origin + (drive - start)]
	mov ax, 0x4300 # extended write
	push ebx
	int 0x13
	pop ebx
	jc failed
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
	jmp write
failed:
	mov al, 'E'
	call putc
	jmp write
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
drive:
	.byte 0
banner:
	.asciz "boot\n"
	.balign 4
first:
	.long 0
packet:
	.byte 16, 0 # size of the packet
	.word 1 # number of sectors
	.word buffer, 0 # data to write
block:
	.long 0, 0 # first sector
	.org 510
	.byte 0x55, 0xaa
