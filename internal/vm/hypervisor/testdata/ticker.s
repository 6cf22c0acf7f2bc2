# A guest that UEFI boots, a program of 1024 bytes: it prints its banner and then counts from zero
# forever, with one number per tick of the firmware's timer. It prints each number on its own line,
# in eight hexadecimal digits written as the letters a to p.
#
# The firmware calls the entry point in 64-bit mode with the system table in rdx. The serial port
# COM1 is at 0x3f8; bit 5 of its line status at 0x3fd is set when the port accepts a byte. Offsets
# are from the UEFI specification, chapter 4, and the format of the program from the PE format.
#
# To assemble it:
#   as --64 -o ticker.o ticker.s && objcopy -O binary -j .text ticker.o ticker.efi
	.intel_syntax noprefix
	.code64
	.equ alignment, 0x200
image:
	.ascii "MZ"
	.org 0x3c
	.long header - image
header:
	.ascii "PE\0\0"
	.word 0x8664 # x86_64
	.word 1 # number of sections
	.long 0, 0, 0
	.word sections - optional
	.word 0x22 # an executable that may be loaded anywhere
optional:
	.word 0x20b # PE32+
	.byte 0, 0
	.long end - start, 0, 0 # sizes of code and data
	.long start - image # entry point
	.long start - image # code
	.quad 0 # preferred address
	.long alignment, alignment
	.word 0, 0, 0, 0, 0, 0 # versions
	.long 0
	.long end - image, start - image # sizes of everything and of the headers
	.long 0
	.word 10, 0 # an application of UEFI
	.quad 0, 0, 0, 0 # stack and heap
	.long 0
	.long 6 # number of data directories
	.fill 6, 8, 0
sections:
	.ascii ".text\0\0\0"
	.long end - start, start - image # in memory
	.long end - start, start - image # in the file
	.long 0, 0, 0
	.long 0x60000020 # code that can be read and executed
	.org alignment
start:
	sub rsp, 40
	# Without this, the firmware resets the machine after five minutes.
	mov rax, qword ptr [rdx + 96] # boot services
	xor ecx, ecx
	xor edx, edx
	xor r8d, r8d
	xor r9d, r9d
	call qword ptr [rax + 256] # SetWatchdogTimer
	lea rsi, [rip + banner]
	cld
next:
	lodsb
	test al, al
	jz count
	call putc
	jmp next
count:
	xor ebx, ebx
wait:
	sti
	hlt
	mov ecx, 8
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
	jmp wait
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
	.org 2 * alignment
end:
