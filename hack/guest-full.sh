#!/usr/bin/env bash
# Builds the full guest's files in a cache directory and prints that directory on stdout; progress goes to stderr.
#
#   hack/guest-full.sh [kubeadm]
#
# The directory (see hack/cache.sh) contains:
#   vmlinux, initrd, cmdline   those of the small guest (hack/guest.sh), which boot the disk
#   root.raw                   a disk with a small Debian system, containerd and the kubelet
# With the argument kubeadm, the directory is in CACHE/guest-kubeadm, and the disk also contains kubeadm and the
# images of a control plane (hack/guest-kubeadm.sh). A second call needs no network.
#
# It does not need root, but it needs the packages mmdebstrap, e2fsprogs and kmod, which it installs if it runs as
# root. Debian's packages come from the mirrors configured for apt on a Debian system, and otherwise from
# MILLWRIGHT_DEBIAN_MIRROR (default http://deb.debian.org/debian).
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suite=bookworm
mirror=${MILLWRIGHT_DEBIAN_MIRROR:-http://deb.debian.org/debian}
# runc, network plugins, and the programs that they, the kubelet and kube-proxy call.
packages=(busybox-static ca-certificates containernetworking-plugins iptables kmod mount nftables runc util-linux)
plugins=(bridge host-local loopback portmap)
programs=$repository/guest/full/programs
size=640M # the file system grows with its disk
kind=guest-full variant=${1:-}
add_variant() { :; }
if [[ $variant == kubeadm ]]; then
	# shellcheck source=hack/guest-kubeadm.sh
	source "$repository/hack/guest-kubeadm.sh"
elif [[ -n $variant ]]; then
	echo "usage: hack/guest-full.sh [kubeadm]" >&2
	exit 2
fi

guest=$("$repository/hack/guest.sh")
controlplane=$("$repository/hack/controlplane.sh" "$@")
kernel=$(find "$guest/../kernel" -name 'linux-image-6.1.*.deb' | sort -V | tail -n 1)
kernel=${MILLWRIGHT_GUEST_KERNEL_DEB:-$kernel}

# shellcheck source=hack/cache.sh
source "$repository/hack/cache.sh"

# input_hash covers the small guest, the control plane with the kubelet, and the files that this script adds.
input_hash() {
	{
		readlink -f "$guest" "$controlplane" | xargs -n1 basename
		basename "$kernel"
		go env GOVERSION
		sha256sum <"$repository/hack/guest-full.sh"
		cd "$repository/guest/full"
		sources_hash
		if [[ -n $variant ]]; then
			sha256sum <"$repository/hack/guest-$variant.sh"
			cd "$repository/guest/$variant"
			sources_hash
		fi
	} | hash_of_input
}

complete() { [[ -f $1/vmlinux && -f $1/initrd && -f $1/cmdline && -f $1/root.raw ]]; }

have_tools() {
	local tool
	for tool in mmdebstrap mke2fs depmod; do
		# The last two are in directories that not every PATH contains.
		PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || return 1
	done
}

install_tools() {
	local packages=(mmdebstrap e2fsprogs kmod)
	if have_tools; then return; fi
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		fail "tools are missing; install them with: sudo apt-get install --yes --no-install-recommends ${packages[*]}"
	fi
	log "installing ${packages[*]}"
	DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install --yes -qq --no-install-recommends "${packages[@]}" >&2
}

# fetch_packages writes an archive with the content of the packages. Each set of packages is downloaded once.
fetch_packages() {
	local archive dir=${cache%/*}/guest-full/packages # shared by all variants
	archive=$dir/$(echo "$suite ${packages[*]}" | sha256sum | cut -c1-16).tar
	if [[ ! -f $archive ]]; then
		log "downloading Debian packages"
		mkdir -p "$dir"
		mmdebstrap --quiet --variant=extract --format=tar \
			--include="$(IFS=, && echo "${packages[*]}")" "$suite" "$temporary/packages.tar" "$mirror" >&2
		mv "$temporary/packages.tar" "$archive"
	fi
	printf '%s' "$archive"
}

# lay_root creates the tree of the disk in the directory $1.
lay_root() {
	local root=$1 plugin
	tar -C "$root" --exclude='./dev/*' -xf "$(fetch_packages)"
	rm -rf "$root"/usr/share/{doc,man,locale,lintian,bash-completion,perl5,info} "$root"/usr/include "$root"/var/cache "$root"/var/lib/apt
	mv "$root/usr/lib/cni" "$root/cni"
	mkdir -p "$root"/usr/lib/{cni,millwright/images} "$root"/usr/local/bin "$root"/{dev,proc,sys,run,tmp,root,mnt} "$root"/var/{log,tmp}
	for plugin in "${plugins[@]}"; do mv "$root/cni/$plugin" "$root/usr/lib/cni/"; done
	rm -rf "$root/cni"
	# Do what the packages' scripts would do.
	"$root/bin/busybox" --list | while read -r name; do
		if [[ ! -e $root/bin/$name && ! -e $root/sbin/$name && ! -e $root/usr/bin/$name && ! -e $root/usr/sbin/$name ]]; then
			ln -s busybox "$root/bin/$name"
		fi
	done
	for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
		ln -sf xtables-nft-multi "$root/usr/sbin/$name"
	done
	cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
	cp -R "$repository/guest/full/root/." "$root/"
}

# add_modules adds the kernel's modules, without drivers for hardware that a virtual machine does not have.
add_modules() {
	local root=$1 release
	dpkg-deb -x "$kernel" "$temporary/kernel"
	release=$(basename "$temporary"/kernel/lib/modules/*)
	mkdir -p "$root/lib/modules/$release"
	cp -R "$temporary/kernel/lib/modules/$release/"{kernel,modules.builtin,modules.builtin.modinfo,modules.order} "$root/lib/modules/$release/"
	PATH=$PATH:/usr/sbin:/sbin depmod -b "$root" "$release"
	rm -rf "$temporary/kernel"
}

# add_programs adds the programs that are built from Go modules.
add_programs() {
	local root=$1
	log "compiling containerd and flannel"
	compile "$programs" "$root/usr/local/bin/" tool ./flanneld
	cp "$controlplane/kubernetes" "$root/usr/local/bin/"
	ln -s kubernetes "$root/usr/local/bin/kubelet"
	ln -s kubernetes "$root/usr/local/bin/kube-proxy"
}

# compile compiles packages of the module $1 into the directory or file $2.
compile() {
	GOOS=linux GOARCH=amd64 go -C "$1" build -trimpath -ldflags '-s -w' -o "${@:2}"
}

# add_images adds the container images, as archives that containerd imports.
add_images() {
	local built=$temporary/programs
	log "compiling the programs of container images"
	mkdir "$built"
	compile "$repository" "$built/" ./guest/full/container
	compile "$programs" "$built/" ./coredns
	add_image "$1" "$built/container" millwright.dev/container:1 '["pause"]'
	add_image "$1" "$built/coredns" "millwright.dev/coredns:$(version github.com/coredns/coredns)" null
	rm -rf "$built"
}

# version prints the version of a module of the programs, without the v.
version() { go -C "$programs" list -m -f '{{.Version}}' "$1" | cut -c2-; }

# add_image adds the image $3 to the tree $1. It contains only the program $2, with the arguments $4 in JSON.
add_image() {
	local program layer dir=$temporary/image
	program=$(basename "$2")
	mkdir -p "$dir/layer"
	mv "$2" "$dir/layer/"
	archive "$dir/layer" "$dir/layer.tar"
	rm -r "$dir/layer"
	layer=$(sha256sum <"$dir/layer.tar" | cut -d' ' -f1)
	printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/%s"],"Cmd":%s,"User":"65532:65532"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$program" "$4" "$layer" >"$dir/config.json"
	printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$3" >"$dir/manifest.json"
	archive "$dir" "$1/usr/lib/millwright/images/$program.tar"
	rm -rf "$dir"
}

# archive creates a reproducible archive of a directory.
archive() { tar -C "$1" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar -cf "$2" .; }

build() {
	local root=$temporary/root
	install_tools
	mkdir -p "$root"
	lay_root "$root"
	add_modules "$root"
	add_programs "$root"
	add_images "$root"
	find "$root" -exec touch -h -d @0 {} +
	add_variant "$root"
	log "writing the disk"
	# In its own user namespace, the builder is root and owns the files.
	truncate -s "$size" "$1/root.raw"
	PATH=$PATH:/usr/sbin:/sbin E2FSPROGS_FAKE_TIME=1 unshare --user --map-root-user mke2fs -q -F -t ext4 -b 4096 -m 0 \
		-E "root_owner=0:0,hash_seed=4d696c6c-7772-6967-6874-000000000000,lazy_itable_init=1" \
		-U 4d696c6c-7772-6967-6874-000000000001 -d "$root" "$1/root.raw"
	rm -rf "$root"
	cp "$guest"/{vmlinux,initrd,cmdline} "$1/"
}

cached "$(input_hash)" complete build
