#!/usr/bin/env bash
# Lays the root of the hypervisors' container image into a cache folder, without the program, and prints
# that folder on stdout; progress goes to stderr.
#
#   hack/hypervisor.sh
#
# The folder (see hack/cache.sh) holds
#   root/      QEMU, qemu-img, qemu-storage-daemon, the libraries and firmware that they load, and the licences of all that
#   packages   the packages of Debian that the files are from, a line NAME VERSION each
# It needs no root, but apt-get and dpkg-deb, of Debian or a system like it, for amd64. A second call fetches
# nothing. Equal versions of packages make equal files.
#
# Environment:
#   MILLWRIGHT_HYPERVISOR_PACKAGES  a file packages of an earlier build, to take the same versions, as far as
#                                   the mirrors still have them
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
machine=pc-q35-7.2 # as internal/vm/hypervisor/qemu pins it; a test compares the two
wanted=(qemu-system-x86 qemu-utils base-files)
libraries=lib/x86_64-linux-gnu
files=(
	usr/bin/qemu-system-x86_64
	usr/bin/qemu-img
	usr/bin/qemu-storage-daemon
	# What is loaded at run time: the translation of instructions, and what ends threads.
	usr/$libraries/qemu/accel-tcg-x86_64.so
	$libraries/libgcc_s.so.1
	# Firmware: of disks, and of kernels that are started directly.
	usr/share/seabios/bios-256k.bin
	usr/share/qemu/kvmvapic.bin
	usr/share/qemu/linuxboot_dma.bin
	usr/share/qemu/multiboot_dma.bin
	usr/share/qemu/pvh.bin
	# The licences that the copyright files of the packages refer to.
	usr/share/common-licenses/{Apache-2.0,Artistic,BSD,GFDL-1.2,GFDL-1.3,GPL-1,GPL-2,GPL-3,LGPL-2,LGPL-2.1,LGPL-3,MPL-1.1,MPL-2.0}
)

kind=hypervisor
# shellcheck source=hack/cache.sh
source "$repository/hack/cache.sh"

# apt_alone runs apt-get as if nothing were installed here.
apt_alone() {
	apt-get -qq -o Debug::NoLocking=1 -o Dir::State::status="$scratch/status" --no-install-recommends "$@"
}

# choose_packages prints what the wanted packages need, and they themselves, as NAME=VERSION.
choose_packages() {
	local exact=()
	if [[ -n ${MILLWRIGHT_HYPERVISOR_PACKAGES:-} ]]; then
		mapfile -t exact < <(awk '{ print $1 "=" $2 }' "$MILLWRIGHT_HYPERVISOR_PACKAGES")
	fi
	apt_alone install --print-uris "${wanted[@]}" "${exact[@]}" | awk '{ print $2 }' |
		sed -E 's/^([^_]+)_(.+)_[^_]+\.deb$/\1=\2/; s/%3a/:/' | sort
}

complete() { [[ -x $1/root/usr/bin/qemu-system-x86_64 && -s $1/packages ]]; }

# fetch_packages brings the packages into the folder $1.
fetch_packages() {
	say "fetching $(wc -w <<<"$packages") packages"
	mkdir -p "$1"
	# Root's apt would have another user fetch, who may not write here.
	(cd "$1" && xargs apt-get -qq -o APT::Sandbox::User=root download <<<"$packages" >&2) ||
		fail "the packages cannot be fetched; apt-get update may help"
}

# unpack_packages unpacks the packages in the folder $1 to the folder $2, and writes whose each file is.
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
	say "it has $(wc -l <"$1/packages") packages, $(du -sh --apparent-size "$1/root" | cut -f1)"
}

# try_qemu starts it with no other libraries than those in the root $1.
try_qemu() {
	local linker=$1/lib64/ld-linux-x86-64.so.2 path=$1/$libraries:$1/usr/$libraries program
	for program in qemu-system-x86_64 qemu-img qemu-storage-daemon; do
		"$linker" --inhibit-cache --library-path "$path" "$1/usr/bin/$program" --version >/dev/null || fail "$program does not start"
	done
	"$linker" --inhibit-cache --library-path "$path" "$1/usr/bin/qemu-system-x86_64" -machine help | grep -q "^$machine " ||
		fail "this QEMU does not know the machine type $machine: another version is needed"
}

for tool in apt-get dpkg-deb; do
	command -v "$tool" >/dev/null || fail "$tool is missing: the image is built from packages of Debian"
done
[[ $(dpkg --print-architecture) == amd64 ]] || fail "the image is for amd64, and this system is for $(dpkg --print-architecture)"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
: >"$scratch/status"
packages=$(choose_packages) || packages=
if [[ -z $packages && $EUID -eq 0 ]]; then
	say "asking for the packages that there are"
	apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
	packages=$(choose_packages) || packages=
fi
[[ -n $packages ]] || fail "apt knows no packages ${wanted[*]}; apt-get update makes them known"
rm -rf "$scratch"
cached "$({ echo "$packages" && cat "${BASH_SOURCE[0]}" "$repository"/hack/image/closure/{main,closure}.go && go env GOVERSION; } | hash_of_input)" complete build
