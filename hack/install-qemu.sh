#!/usr/bin/env bash
# Makes sure that QEMU for x86, its firmware and its tool for disk images are there, which
# virtual machines need, and the tools for ext4, with which tests make disks. A second call finds its work done.
#
#   hack/install-qemu.sh
#
# As root on a system with apt-get it installs what is missing. Everywhere else it
# prints the command that does so, and fails.
set -euo pipefail

# shellcheck disable=SC2034 # they are for hack/packages.sh
name=install-qemu
qemu=qemu-system-x86_64
machine=pc-q35-7.2 # as internal/vm/hypervisor/qemu pins it; a test compares the two
packages=(qemu-system-x86 qemu-utils e2fsprogs) # the first brings SeaBIOS and qemu-storage-daemon with it
# shellcheck source=hack/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

# missing also asks for the machine type, since QEMU drops old ones some day.
missing() {
	local program machines
	for program in "$qemu" qemu-storage-daemon qemu-img qemu-io mkfs.ext4 debugfs; do
		PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || { printf '%s is missing' "$program" && return; }
	done
	machines=$("$qemu" -machine help) || machines=
	[[ $'\n'$machines == *$'\n'"$machine "* ]] ||
		printf '%s does not run, or does not know the machine type %s: another version is needed' "$qemu" "$machine"
}

install_packages
