#!/usr/bin/env bash
# Makes sure that QEMU for x86, its firmware and its tool for disk images are there, which
# virtual machines need. A second call finds its work done.
#
#   hack/install-qemu.sh
#
# As root on a system with apt-get it installs what is missing. Everywhere else it
# prints the command that does so, and fails.
set -euo pipefail

qemu=qemu-system-x86_64
machine=pc-q35-7.2 # as internal/vm/hypervisor/qemu pins it; a test compares the two
packages=(qemu-system-x86 qemu-utils) # the first brings SeaBIOS with it
install=(apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends "${packages[@]}")

say() { printf '%s\n' "install-qemu: $*" >&2; }

# usable also asks for the machine type, since QEMU drops old ones some day.
usable() {
	command -v "$qemu" >/dev/null && command -v qemu-img >/dev/null || return 1
	local machines
	machines=$("$qemu" -machine help) || return 1
	[[ $'\n'$machines == *$'\n'"$machine "* ]]
}

explain() {
	say "$1"
	say "install it with: apt-get update && apt-get install --yes --no-install-recommends ${packages[*]}"
	if [[ $EUID -ne 0 ]]; then say "(as root, for example through sudo)"; fi
	exit 1
}

main() {
	if usable; then
		say "up to date"
		return
	fi
	if command -v "$qemu" >/dev/null && command -v qemu-img >/dev/null; then
		explain "$qemu does not run, or does not know the machine type $machine; another version is needed"
	fi
	if [[ $EUID -ne 0 ]]; then explain "$qemu or qemu-img is missing"; fi
	command -v apt-get >/dev/null || explain "$qemu or qemu-img is missing, and so is apt-get"

	say "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
	"${install[@]}" -qq >&2
	usable || explain "$qemu was installed, but does not run with the machine type $machine"
	say "done: $("$qemu" -version | head -n 1)"
}

main "$@"
