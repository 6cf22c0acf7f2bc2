# A guest of 512 bytes: it prints its banner and then counts from zero forever. It writes each
# number to all of its disks, one after the other, through the firmware, and then prints it on its
# own line, in eight hexadecimal digits written as the letters a to p. Number n is at the beginning
# of sector 2048 + n modulo 4096. After a failed write, it prints an E and repeats the write.
#
# If the byte at 509 is not zero, it sleeps before each number until the next tick of the timer,
# which has 512 ticks per second. Otherwise it counts as fast as it can. If the byte at 508 is not
# zero, it also writes each number to every page of the memory from 64 KiB to 576 KiB.
#
# The firmware loads the boot sector to 0x7c00 and jumps to it in 16-bit mode, with the number of
# the disk in dl. The serial port COM1 is at 0x3f8; bit 5 of its line status at 0x3fd is set when
# the port accepts a byte. The firmware stores the number of disks at 0x475.
#
# To assemble it:
#   as --32 -o scribes.o scribes.s && objcopy -O binary -j .text scribes.o scribes.img
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
	mov byte ptr [origin + (first - start)], dl
	mov si, offset origin + (banner - start)
next:
	lodsb
	test al, al
	jz count
	call putc
	jmp next
count:
	cmp byte ptr [origin + (sleeps - start)], 0
	je begin
	mov al, 0x34 # the timer divides 1,193,182 Hz
	out 0x43, al
	mov al, 2330 & 255
	out 0x40, al
	mov al, 2330 >> 8
	out 0x40, al
begin:
	xor ebx, ebx
write:
	cmp byte ptr [origin + (sleeps - start)], 0
	je awake
	sti
	hlt
	cli
awake:
	cmp byte ptr [origin + (dirties - start)], 0
	je counted
	mov ax, 0x1000
page:
	mov es, ax
	mov dword ptr es:[0], ebx
	add ax, 0x100
	cmp ax, 0x9000
	jb page
counted:
	mov dword ptr [buffer], ebx
	mov eax, ebx
	and eax, 4095
	add eax, 2048
	mov dword ptr [origin + (block - start)], eax
	mov dl, byte ptr [origin + (first - start)]
	mov byte ptr [origin + (drive - start)], dl
each:
	mov si, offset origin + (packet - start)
	mov dl, byte ptr [origin + (drive - start)]
	mov ax, 0x4300 # extended write
	push ebx
	int 0x13
	pop ebx
	jc failed
	inc byte ptr [origin + (drive - start)]
	mov al, byte ptr [origin + (drive - start)]
	sub al, byte ptr [origin + (first - start)]
	cmp al, byte ptr [0x475]
	jb each
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
	jmp each
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
first:
	.byte 0
drive:
	.byte 0
banner:
	.asciz "boot\n"
	.balign 4
packet:
	.byte 16, 0 # size of the packet
	.word 1 # number of sectors
	.word buffer, 0 # data to write
block:
	.long 0, 0 # first sector
	.org 508
dirties:
	.byte 0
sleeps:
	.byte 0
	.byte 0x55, 0xaa
