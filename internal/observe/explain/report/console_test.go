package report

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// hostKeys is the console of a guest with cloud-init 22.4.
const hostKeys = `[   31.5] cloud-init[612]: kubelet: no such file
<14>Nov 29 17:01:05 cloud-init: #############################################################
<14>Nov 29 17:01:05 cloud-init: -----BEGIN SSH HOST KEY FINGERPRINTS-----
<14>Nov 29 17:01:05 cloud-init: 256 SHA256:q0cF8c1WQPRbEOjuK8tGkW0w4fKQgVJYmVQH1Jt8dcE root@pool-1 (ECDSA)
<14>Nov 29 17:01:05 cloud-init: 3072 SHA256:VCUbGW6hLsqmcT9wE3pxp7bTzS6MvJ0q5b2Dk4L8zFk root@pool-1 (RSA)
<14>Nov 29 17:01:05 cloud-init: -----END SSH HOST KEY FINGERPRINTS-----
<14>Nov 29 17:01:05 cloud-init: #############################################################
-----BEGIN SSH HOST KEY KEYS-----
ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBLk= root@pool-1
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJk2q root@pool-1
ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQC7
-----END SSH HOST KEY KEYS-----
Debian GNU/Linux 12 pool-1 ttyS0
`

// TestLastLines checks which lines of a console are shown.
func TestLastLines(t *testing.T) {
	for name, c := range map[string]struct {
		output string
		want   []string
	}{
		"nothing":                   {"", nil},
		"blank lines":               {"\r\n \r\n\n", nil},
		"incomplete last line":      {"one\r\ntwo", []string{"one", "two"}},
		"more lines than the limit": {"0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n", strings.Split("23456789", "")},
		"colors and a title":        {"\x1b[1;31mred\x1b[0m\x1b]0;rm -rf\x07 or not\x1b]52;c;Y3VybA==\x1b\\\n", []string{"red or not"}},
		"an escape at the end":      {"one\x1b[", []string{"one"}},
		"unterminated string":       {"one\n\x1b]0;two", []string{"one"}},
		"a progress bar":            {"10%\r50%\rdone\r\n", []string{"done"}},
		"SSH host keys":             {hostKeys, []string{"[   31.5] cloud-init[612]: kubelet: no such file", "Debian GNU/Linux 12 pool-1 ttyS0"}},
		"a part of the keys":        {hostKeys[strings.Index(hostKeys, "SHA256"):], []string{"SHA256:q0cF8c1WQPRbEOjuK8tGkW0w4fKQgVJYmVQH1Jt8dcE root@pool-1 (ECDSA)", "Debian GNU/Linux 12 pool-1 ttyS0"}},
		"text about keys":           {"ssh-keygen: generating\n#\nssh-rsa is old\n", []string{"ssh-keygen: generating", "#", "ssh-rsa is old"}},
		"other characters":          {"a\x00b\ac\u202ed\u009b31me\xff\n", []string{"a b c d 31me\ufffd"}},
	} {
		if diff := cmp.Diff(c.want, LastLines([]byte(c.output))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	long := LastLines([]byte(strings.Repeat("x", 2*consoleBytes) + "\n" + strings.Repeat("y", consoleBytes-1)))
	if len(long) != 1 || len(long[0]) > consoleLine || !strings.HasPrefix(long[0], "yyy") {
		t.Errorf("long lines: %q", long)
	}
}

// bios and uefi are the consoles of VMs whose disk does not boot.
const (
	bios = "\x1bc\x1b[?7l\x1b[2J\x1b[0mSeaBIOS (version 1.16.2-debian-1.16.2-1)\r\nBooting from Hard Disk...\r\nBoot failed: not a bootable disk\r\n\r\nNo bootable device.\r\n"
	uefi = "\x1b[2J\x1b[01;01HBdsDxe: failed to load Boot0001 \"UEFI Misc Device\" from PciRoot(0x0)/Pci(0x1,0x0): Not Found\r\n" +
		"BdsDxe: starting Boot0002 \"EFI Internal Shell\" from Fv(7CB8BDC9)/FvFile(7C04A583)\r\n\x1b[2JUEFI Interactive Shell v2.2\r\nEDK II\r\n\x1b[1mShell> \x1b[0m"
)

func TestHasGuestOutput(t *testing.T) {
	for name, c := range map[string]struct {
		output string
		want   bool
	}{
		"nothing":                          {"\r\n", false},
		"a disk that BIOS does not boot":   {bios, false},
		"a disk that UEFI does not boot":   {uefi, false},
		"a guest that boots by BIOS":       {"SeaBIOS (version 1.16.2)\r\nBooting from Hard Disk..[    5.15] boot: kernel 6.1\n", true},
		"a guest that boots by UEFI":       {"BdsDxe: starting Boot0001 \"UEFI Misc Device\" from PciRoot(0x0)\r\nDebian GNU/Linux 12\r\n", true},
		"a boot loader":                    {"Booting from Hard Disk...\r\nGRUB loading.\r\nWelcome to GRUB!\r\n", true},
		"only the latest output":           {bios + strings.Repeat("[ 5.4] join: waiting\n", 20), true},
		"a reset to a disk without system": {strings.Repeat("[ 5.4] join: waiting\n", 20) + bios + bios, false},
	} {
		if got := HasGuestOutput([]byte(c.output)); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}

// FuzzLastLines checks that any console output results in a limited number of printable lines.
func FuzzLastLines(f *testing.F) {
	f.Add([]byte("größer \x1b[2J\u009b31m\r\x1b]0;x\x07\n\x1b[?25l\x1b[6n\xff\u2028"))
	f.Fuzz(func(t *testing.T, output []byte) {
		lines := LastLines(output)
		if len(lines) > consoleLines {
			t.Errorf("%d lines", len(lines))
		}
		for _, line := range lines {
			if line == "" || len(line) > consoleLine || !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q shows %q", output, line)
			}
		}
	})
}
