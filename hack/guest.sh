#!/usr/bin/env bash
# Builds the small guest's files in a cache directory and prints that directory on stdout; progress goes to stderr.
#
#   hack/guest.sh
#
# The directory (see hack/cache.sh) contains:
#   vmlinux   the kernel, as QEMU starts it directly (with the PVH entry point)
#   initrd    the initial file system: init, written in Go, and kernel modules
#   cmdline   the kernel's command line
#   boot.raw  a disk with both, which a BIOS boots
# A second call needs no network.
#
# The kernel is the latest of Debian's cloud kernels that apt lists. If apt lists none, a package that an earlier
# call has downloaded is used.
#
# Environment:
#   MILLWRIGHT_GUEST_KERNEL_DEB  kernel package to use instead of the one from apt
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
series='linux-image-6.1.' # the kernels with which the guest is tested
mbr=/usr/lib/syslinux/mbr/mbr.bin
packages=(syslinux syslinux-common mtools dosfstools)
kind=guest
# shellcheck source=hack/cache.sh
source "$repository/hack/cache.sh"

# newest_kernel prints the file name under which apt downloads the latest kernel, or nothing. apt writes colons of
# versions as %3a.
newest_kernel() {
	command -v apt-cache >/dev/null || return 0
	local package version
	package=$(apt-cache pkgnames "$series" | grep -E '^linux-image-[0-9.]+-[0-9]+-cloud-amd64$' | sort -V | tail -n 1) || return 0
	version=$(apt-cache show --no-all-versions "$package" | sed -n 's/^Version: //p' | head -n 1)
	printf '%s_%s_amd64.deb' "$package" "${version//:/%3a}"
}

# choose_kernel prints the path of the kernel's package, which may not exist yet.
choose_kernel() {
	local name
	if [[ -n ${MILLWRIGHT_GUEST_KERNEL_DEB:-} ]]; then
		[[ -f $MILLWRIGHT_GUEST_KERNEL_DEB ]] || fail "$MILLWRIGHT_GUEST_KERNEL_DEB does not exist; check MILLWRIGHT_GUEST_KERNEL_DEB"
		realpath "$MILLWRIGHT_GUEST_KERNEL_DEB"
		return
	fi
	name=$(newest_kernel)
	if [[ -z $name ]]; then
		name=$(find "$cache/kernel" -maxdepth 1 -name "$series*.deb" -printf '%f\n' 2>/dev/null | sort -V | tail -n 1)
	fi
	if [[ -z $name && $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
		log "updating the package lists"
		apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
		name=$(newest_kernel)
	fi
	if [[ -z $name ]]; then
		log "cannot find a package ${series}*-cloud-amd64; on Debian, run apt-get update"
		fail "on other systems, download one from Debian and set MILLWRIGHT_GUEST_KERNEL_DEB to its path"
	fi
	printf '%s' "$cache/kernel/$name"
}

# input_hash covers the kernel, the sources, the modules that they use, this script, and the compiler.
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
		# mkfs.vfat is in a directory that not every PATH contains.
		PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || return 1
	done
	[[ -f $mbr ]]
}

install_tools() {
	if have_tools; then return; fi
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		log "tools for the bootable disk are missing"
		fail "install them with: sudo apt-get install --yes --no-install-recommends ${packages[*]}"
	fi
	log "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	if ! apt-get -o DPkg::Lock::Timeout=300 install --yes -qq --no-install-recommends "${packages[@]}" >&2; then
		apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
		apt-get -o DPkg::Lock::Timeout=300 install --yes -qq --no-install-recommends "${packages[@]}" >&2
	fi
	have_tools || fail "${packages[*]} are installed, but syslinux, mcopy, mkfs.vfat or $mbr is missing"
}

# start_over_with_new_lists starts again, once, if apt can update the package lists: mirrors remove a kernel as soon
# as a newer one exists.
start_over_with_new_lists() {
	if [[ $EUID -ne 0 || -n ${GUEST_LISTS_ARE_NEW:-} ]]; then return; fi
	log "updating the package lists"
	apt-get -o DPkg::Lock::Timeout=300 update -qq >&2 || return 0
	clean_up
	GUEST_LISTS_ARE_NEW=yes exec "${BASH_SOURCE[0]}"
}

# fetch_kernel downloads the package if it does not exist.
fetch_kernel() {
	local name
	if [[ -f $deb ]]; then return; fi
	name=$(basename "$deb")
	log "fetching $name"
	mkdir -p "$temporary/download" "$cache/kernel"
	if ! (cd "$temporary/download" && apt-get download -qq "${name%%_*}" >&2 2>"$temporary/download.log"); then
		cat "$temporary/download.log" >&2
		start_over_with_new_lists
		fail "cannot download the kernel; try apt-get update"
	fi
	[[ -f $temporary/download/$name ]] || fail "apt-get download did not provide $name"
	mv "$temporary/download/$name" "$deb"
	rm -rf "$temporary/download" "$temporary/download.log"
}

build() {
	install_tools
	fetch_kernel
	command -v dpkg-deb >/dev/null || fail "dpkg-deb is missing; install the package dpkg"
	dpkg-deb -x "$deb" "$1/kernel"
	log "compiling init"
	GOOS=linux GOARCH=amd64 go -C "$repository" build -trimpath -ldflags '-s -w' -o "$1/init" ./guest/init
	(cd "$repository" && PATH=$PATH:/usr/sbin:/sbin go run ./guest/build \
		-kernel "$1/kernel" -init "$1/init" -mbr "$mbr" -output "$1")
	rm -rf "$1/kernel" "$1/init"
	log "the kernel is from $(basename "$deb")"
}

deb=$(choose_kernel)
cached "$(input_hash)" complete build
