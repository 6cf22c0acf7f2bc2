#!/usr/bin/env bash
# Installs QEMU for x86, its firmware for BIOS and UEFI, and its tool for disk images, which virtual machines need, and
# the tools for ext4, with which tests create disks. If they are installed, it does nothing.
#
#   hack/install-qemu.sh
#
# As root on a system with apt-get, it installs missing packages. Otherwise, it prints the command that installs
# them, and fails.
set -euo pipefail

# shellcheck disable=SC2034 # used by hack/packages.sh
name=install-qemu
qemu=qemu-system-x86_64
machine=pc-q35-7.2 # must be the one in internal/vm/hypervisor/qemu; a test compares them
uefi=/usr/share/ovmf/OVMF.fd # like machine
packages=(qemu-system-x86 qemu-utils ovmf e2fsprogs) # the first includes SeaBIOS and qemu-storage-daemon
# shellcheck source=hack/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

# missing also checks the machine type, because QEMU removes old ones.
missing() {
	local program machines
	for program in "$qemu" qemu-storage-daemon qemu-img qemu-io mkfs.ext4 debugfs; do
		PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || { printf '%s is missing' "$program" && return; }
	done
	[[ -f $uefi ]] || { printf '%s is missing' "$uefi" && return; }
	machines=$("$qemu" -machine help) || machines=
	[[ $'\n'$machines == *$'\n'"$machine "* ]] ||
		printf '%s does not run, or does not support the machine type %s; another version is required' "$qemu" "$machine"
}

install_packages
