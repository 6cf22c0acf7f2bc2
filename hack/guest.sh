#!/usr/bin/env bash
# Builds the small guest's files into a cache folder and prints that folder on stdout;
# progress goes to stderr.
#
#   hack/guest.sh
#
# The folder (see hack/cache.sh) holds
#   vmlinux   the kernel, as QEMU starts it directly (with the entry for PVH)
#   initrd    the initial file system: init, written in Go, and kernel modules
#   cmdline   the kernel's command line
#   boot.raw  a disk with both, which a BIOS boots
# A second call needs no network.
#
# The kernel is the newest of Debian's cloud kernels that apt knows. Where apt knows
# none, a package that an earlier call has fetched is used.
#
# Environment:
#   MILLWRIGHT_GUEST_KERNEL_DEB  a kernel's package to use, instead of asking apt
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
series='linux-image-6.1.' # the kernels that the guest was tried with
mbr=/usr/lib/syslinux/mbr/mbr.bin
packages=(syslinux syslinux-common mtools dosfstools)
kind=guest
# shellcheck source=hack/cache.sh
source "$repository/hack/cache.sh"

# newest_kernel prints the file name under which apt fetches the newest kernel, or
# nothing. apt writes colons of versions as %3a.
newest_kernel() {
	command -v apt-cache >/dev/null || return 0
	local package version
	package=$(apt-cache pkgnames "$series" | grep -E '^linux-image-[0-9.]+-[0-9]+-cloud-amd64$' | sort -V | tail -n 1) || return 0
	version=$(apt-cache show --no-all-versions "$package" | sed -n 's/^Version: //p' | head -n 1)
	printf '%s_%s_amd64.deb' "$package" "${version//:/%3a}"
}

# choose_kernel prints the path of the kernel's package, which may not be there yet.
choose_kernel() {
	local name
	if [[ -n ${MILLWRIGHT_GUEST_KERNEL_DEB:-} ]]; then
		[[ -f $MILLWRIGHT_GUEST_KERNEL_DEB ]] || fail "there is no $MILLWRIGHT_GUEST_KERNEL_DEB"
		realpath "$MILLWRIGHT_GUEST_KERNEL_DEB"
		return
	fi
	name=$(newest_kernel)
	if [[ -z $name ]]; then
		name=$(find "$cache/kernel" -maxdepth 1 -name "$series*.deb" -printf '%f\n' 2>/dev/null | sort -V | tail -n 1)
	fi
	if [[ -z $name && $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
		say "asking for the packages that there are"
		apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
		name=$(newest_kernel)
	fi
	if [[ -z $name ]]; then
		say "no package ${series}*-cloud-amd64 is known; on Debian, apt-get update makes it known"
		fail "elsewhere, fetch one from Debian and name it in MILLWRIGHT_GUEST_KERNEL_DEB"
	fi
	printf '%s' "$cache/kernel/$name"
}

# input_hash covers the kernel, the sources, the modules that they use, this script,
# and the compiler.
input_hash() {
	{
		basename "$deb"
		if [[ -n ${MILLWRIGHT_GUEST_KERNEL_DEB:-} ]]; then sha256sum <"$deb"; fi
		go -C "$repository" env GOVERSION GOAMD64 GOEXPERIMENT
		sha256sum <"$repository/hack/guest.sh"
		grep -E '^\s*(golang.org/x/sys|sigs.k8s.io/yaml|go.yaml.in/yaml|google.golang.org/protobuf|github.com/(pierrec/lz4|klauspost/compress|ulikunitz/xz|u-root/u-root|vishvananda/netlink))' \
			"$repository/go.mod"
		cd "$repository/guest"
		sources_hash -name '*.go' ! -name '*_test.go'
	} | hash_of_input
}

complete() { [[ -f $1/vmlinux && -f $1/initrd && -f $1/cmdline && -f $1/boot.raw ]]; }

have_tools() {
	local tool
	for tool in syslinux mcopy mkfs.vfat; do
		# mkfs.vfat lies where not everybody's PATH leads.
		PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || return 1
	done
	[[ -f $mbr ]]
}

install_tools() {
	if have_tools; then return; fi
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		say "tools for the bootable disk are missing"
		fail "install them with: sudo apt-get install --yes --no-install-recommends ${packages[*]}"
	fi
	say "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	if ! apt-get -o DPkg::Lock::Timeout=300 install --yes -qq --no-install-recommends "${packages[@]}" >&2; then
		apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
		apt-get -o DPkg::Lock::Timeout=300 install --yes -qq --no-install-recommends "${packages[@]}" >&2
	fi
	have_tools || fail "${packages[*]} were installed, but do not bring syslinux, mcopy, mkfs.vfat and $mbr"
}

# start_over_with_new_lists begins anew, once, if apt can be asked which packages there are
# now: mirrors drop a kernel as soon as there is a newer one.
start_over_with_new_lists() {
	if [[ $EUID -ne 0 || -n ${GUEST_LISTS_ARE_NEW:-} ]]; then return; fi
	say "asking for the packages that there are now"
	apt-get -o DPkg::Lock::Timeout=300 update -qq >&2 || return 0
	clean_up
	GUEST_LISTS_ARE_NEW=yes exec "${BASH_SOURCE[0]}"
}

# fetch_kernel downloads the package, unless it is there.
fetch_kernel() {
	local name
	if [[ -f $deb ]]; then return; fi
	name=$(basename "$deb")
	say "fetching $name"
	mkdir -p "$temporary/download" "$cache/kernel"
	if ! (cd "$temporary/download" && apt-get download -qq "${name%%_*}" >&2 2>"$temporary/download.log"); then
		cat "$temporary/download.log" >&2
		start_over_with_new_lists
		fail "the kernel cannot be fetched; apt-get update may help"
	fi
	[[ -f $temporary/download/$name ]] || fail "apt-get download did not bring $name"
	mv "$temporary/download/$name" "$deb"
	rm -rf "$temporary/download" "$temporary/download.log"
}

build() {
	install_tools
	fetch_kernel
	command -v dpkg-deb >/dev/null || fail "dpkg-deb is missing; it is part of the package dpkg"
	dpkg-deb -x "$deb" "$1/kernel"
	say "compiling init"
	GOOS=linux GOARCH=amd64 go -C "$repository" build -trimpath -ldflags '-s -w' -o "$1/init" ./guest/init
	(cd "$repository" && PATH=$PATH:/usr/sbin:/sbin go run ./guest/build \
		-kernel "$1/kernel" -init "$1/init" -mbr "$mbr" -output "$1")
	rm -rf "$1/kernel" "$1/init"
	say "it has the kernel of $(basename "$deb")"
}

deb=$(choose_kernel)
cached "$(input_hash)" complete build
