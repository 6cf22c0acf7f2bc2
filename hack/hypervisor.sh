#!/usr/bin/env bash
# Creates the root directory of the hypervisors' container image, without the program, in a cache directory, and
# prints that directory on stdout; progress goes to stderr.
#
#   hack/hypervisor.sh
#
# The directory (see hack/cache.sh) contains:
#   root/      QEMU, qemu-img, qemu-storage-daemon, the libraries and firmware that they load, and the licenses of all parts
#   packages   the Debian packages that the files are from, one line NAME VERSION each
# It does not need root, but it needs apt-get and dpkg-deb of Debian or a derivative, for amd64. A second call
# downloads nothing. The same versions of packages result in the same files.
#
# Environment:
#   MILLWRIGHT_HYPERVISOR_PACKAGES  the file packages of an earlier build, to use the same versions as long as
#                                   the mirrors have them
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
machine=pc-q35-7.2 # must be the one in internal/vm/hypervisor/qemu; a test compares them
uefi=/usr/share/ovmf/OVMF.fd # like machine
requested=(qemu-system-x86 qemu-utils ovmf base-files)
libraries=lib/x86_64-linux-gnu
files=(
	usr/bin/qemu-system-x86_64
	usr/bin/qemu-img
	usr/bin/qemu-storage-daemon
	# Files that are loaded at run time: the instruction translator, and a library for thread cancellation.
	usr/$libraries/qemu/accel-tcg-x86_64.so
	$libraries/libgcc_s.so.1
	# Firmware for booting from disks, and for kernels that are started directly.
	usr/share/seabios/bios-256k.bin
	"${uefi#/}"
	usr/share/qemu/kvmvapic.bin
	usr/share/qemu/linuxboot_dma.bin
	usr/share/qemu/multiboot_dma.bin
	usr/share/qemu/pvh.bin
	# Firmware of the graphics card, and a keyboard layout for the VNC server.
	usr/share/seabios/vgabios-stdvga.bin
	usr/share/qemu/keymaps/en-us
	# The licenses that the copyright files of the packages refer to.
	usr/share/common-licenses/{Apache-2.0,Artistic,BSD,GFDL-1.2,GFDL-1.3,GPL-1,GPL-2,GPL-3,LGPL-2,LGPL-2.1,LGPL-3,MPL-1.1,MPL-2.0}
)

kind=hypervisor
# shellcheck source=hack/cache.sh
source "$repository/hack/cache.sh"

# apt_alone runs apt-get as if no packages were installed here.
apt_alone() {
	apt-get -qq -o Debug::NoLocking=1 -o Dir::State::status="$scratch/status" --no-install-recommends "$@"
}

# choose_packages prints the requested packages and their dependencies as NAME=VERSION.
choose_packages() {
	local exact=()
	if [[ -n ${MILLWRIGHT_HYPERVISOR_PACKAGES:-} ]]; then
		mapfile -t exact < <(awk '{ print $1 "=" $2 }' "$MILLWRIGHT_HYPERVISOR_PACKAGES")
	fi
	apt_alone install --print-uris "${requested[@]}" "${exact[@]}" | awk '{ print $2 }' |
		sed -E 's/^([^_]+)_(.+)_[^_]+\.deb$/\1=\2/; s/%3a/:/' | sort
}

complete() { [[ -x $1/root/usr/bin/qemu-system-x86_64 && -s $1/packages ]]; }

# fetch_packages downloads the packages to the directory $1.
fetch_packages() {
	log "downloading $(wc -w <<<"$packages") packages"
	mkdir -p "$1"
	# As root, apt would download as another user, who cannot write to this directory.
	(cd "$1" && xargs apt-get -qq -o APT::Sandbox::User=root download <<<"$packages" >&2) ||
		fail "cannot download the packages; try apt-get update"
}

# unpack_packages unpacks the packages in the directory $1 to the directory $2, and records the package of each
# file.
unpack_packages() {
	local package name version
	for package in "$1"/*.deb; do
		dpkg-deb -x "$package" "$2"
		read -r name version < <(dpkg-deb --show --showformat '${Package} ${Version}\n' "$package")
		dpkg-deb --fsys-tarfile "$package" | tar -t | sed "s|^\./|$name $version |; /^$name $version \$/d"
	done >"$1/owners"
}

build() {
	fetch_packages "$temporary/fetched"
	unpack_packages "$temporary/fetched" "$temporary/unpacked"
	mkdir -p "$1/root"
	go -C "$repository/hack/image" run ./closure --from "$temporary/unpacked" --owners "$temporary/fetched/owners" \
		--to "$1/root" "${files[@]}" >"$1/packages"
	rm -rf "$temporary/fetched" "$temporary/unpacked"
	try_qemu "$1/root"
	log "the image contains $(wc -l <"$1/packages") packages, $(du -sh --apparent-size "$1/root" | cut -f1)"
}

# try_qemu starts QEMU using only the libraries in the root $1.
try_qemu() {
	local linker=$1/lib64/ld-linux-x86-64.so.2 path=$1/$libraries:$1/usr/$libraries program
	for program in qemu-system-x86_64 qemu-img qemu-storage-daemon; do
		"$linker" --inhibit-cache --library-path "$path" "$1/usr/bin/$program" --version >/dev/null || fail "$program does not start"
	done
	"$linker" --inhibit-cache --library-path "$path" "$1/usr/bin/qemu-system-x86_64" -machine help | grep -q "^$machine " ||
		fail "this QEMU does not support the machine type $machine; another version is required"
}

for tool in apt-get dpkg-deb; do
	command -v "$tool" >/dev/null || fail "$tool is missing; building the image requires Debian packages"
done
[[ $(dpkg --print-architecture) == amd64 ]] || fail "the image is for amd64, but this system is for $(dpkg --print-architecture)"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
: >"$scratch/status"
packages=$(choose_packages) || packages=
if [[ -z $packages && $EUID -eq 0 ]]; then
	log "updating the package lists"
	apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
	packages=$(choose_packages) || packages=
fi
[[ -n $packages ]] || fail "apt does not list the packages ${requested[*]}; run apt-get update"
rm -rf "$scratch"
cached "$({ echo "$packages" && cat "${BASH_SOURCE[0]}" "$repository"/hack/image/closure/{main,closure}.go && go env GOVERSION; } | hash_of_input)" complete build
