# A guest of 512 bytes: it prints its banner and then writes to its disk, through the firmware,
# 96 times 32 KiB from the second MiB on. It prints a dot after each write, and an E after one
# that failed; at the end it prints "done" and stops.
#
# The firmware loads the boot sector to 0x7c00 and jumps there in 16-bit mode, with the number
# of the disk in dl. The serial port COM1 is at 0x3f8; bit 5 of its line status at 0x3fd says
# that it takes a byte.
#
# To assemble it:
#   as --32 -o writer.o writer.s && objcopy -O binary -j .text writer.o writer.img
	.intel_syntax noprefix
	.code16
	.equ origin, 0x7c00
	.equ sectors, 64 # of one write
	.equ writes, 96
start:
	cli
	xor ax, ax
	mov ds, ax
	mov ss, ax
	mov sp, offset origin
	cld
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
	.byte 16, 0 # its size
	.word sectors
	.word 0x7c00, 0 # what is written
block:
	.long 2048, 0 # where
	.org 510
	.byte 0x55, 0xaa
