# A guest of 512 bytes: it prints its banner and then writes 32 KiB to its disk through the firmware,
# 96 times, starting at the second MiB. It prints a dot after each write, or an E if the write failed.
# At the end, it prints "done" and stops.
#
# The firmware loads the boot sector to 0x7c00 and jumps to it in 16-bit mode, with the number of
# the disk in dl. The serial port COM1 is at 0x3f8; bit 5 of its line status at 0x3fd is set when
# the port accepts a byte.
#
# To assemble it:
#   as --32 -o writer.o writer.s && objcopy -O binary -j .text writer.o writer.img
	.intel_syntax noprefix
	.code16
	.equ origin, 0x7c00
	.equ sectors, 64 # per write
	.equ writes, 96
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
	call puts
	mov cx, writes
write:
	push cx
	mov si, offset origin + (packet - start)
	mov dl, byte ptr [origin + (drive - start)]
	mov ax, 0x4300 # extended write
	int 0x13
	mov al, 'E'
	jc tell
	mov al, '.'
tell:
	call putc
	pop cx
	add word ptr [origin + (block - start)], sectors
	loop write
	mov si, offset origin + (end - start)
	call puts
stop:
	hlt
	jmp stop
puts: # sends the text at si
	lodsb
	test al, al
	jz return
	call putc
	jmp puts
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
return:
	ret
drive:
	.byte 0
banner:
	.asciz "boot\n"
end:
	.asciz "done\n"
	.balign 4
packet:
	.byte 16, 0 # size of the packet
	.word sectors
	.word 0x7c00, 0 # data to write
block:
	.long 2048, 0 # first sector
	.org 510
	.byte 0x55, 0xaa
