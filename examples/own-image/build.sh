#!/usr/bin/env bash
# Builds a disk image of Debian 12 with cloud-init, containerd and a kubelet, which boots by BIOS and by UEFI.
#
#   examples/own-image/build.sh KUBELET IMAGE [PACKAGE...]
#
# KUBELET is the program, such as https://dl.k8s.io/v1.37.2/bin/linux/amd64/kubelet. IMAGE is the file to write, in
# the format QCOW2. The packages are added to those of the image.
#
# Run it as root on Debian 12 or later, or a derivative, with these packages. It needs no loop devices. Without root, which
# is not tested, it also uses fakeroot and uidmap.
#
#   apt-get install dosfstools e2fsprogs fdisk grub-common grub-efi-amd64-bin grub-pc-bin mmdebstrap mtools qemu-utils
#
# Debian's packages come from the mirrors configured for apt on a Debian system, and otherwise from
# MILLWRIGHT_DEBIAN_MIRROR (default http://deb.debian.org/debian).
set -euo pipefail

if (($# < 2)); then
	echo "usage: examples/own-image/build.sh KUBELET IMAGE [PACKAGE...]" >&2
	exit 2
fi
kubelet=$(realpath "$1") image=$(realpath -m "$2")
shift 2
mirror=${MILLWRIGHT_DEBIAN_MIRROR:-http://deb.debian.org/debian}
packages=(
	# systemd, with logind for the power button, and a kernel with few drivers other than virtio.
	dbus initramfs-tools kmod linux-image-cloud-amd64 systemd-sysv systemd-timesyncd udev zstd
	# cloud-init, and the programs with which it extends the root file system.
	cloud-guest-utils cloud-init e2fsprogs fdisk
	# The network: cloud-init writes a file for netplan, and netplan writes files for systemd-networkd.
	iproute2 netplan.io systemd-resolved
	# The node, and programs that network plugins and kube-proxy call.
	ca-certificates conntrack containerd containernetworking-plugins iptables nftables runc
)

# The first MiB and the size of each partition in MiB. The root file system is last, so that growpart can extend it.
boot=1 boot_size=1
esp=2 esp_size=16
root=18 root_size=2048
size=$((root + root_size + 1)) # the last MiB contains a copy of the partition table
sectors=2048                   # per MiB

export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C
for tool in grub-mkimage mcopy mke2fs mkfs.vfat mmdebstrap qemu-img sfdisk; do
	command -v "$tool" >/dev/null || { echo "cannot find $tool; install the packages that $0 lists" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 711 "$work" # without root, mmdebstrap uses other user IDs
umask 022

# as_root runs a command that sees and sets the owners of files.
as_root() { if ((EUID == 0)); then "$@"; else fakeroot -- "$@"; fi; }

# install_debian writes an archive with the installed system, including the additional packages, to the file $1.
install_debian() {
	local archive=$1
	shift
	packages+=("$@")
	mmdebstrap --variant=apt --format=tar --include="$(IFS=, && echo "${packages[*]}")" \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--customize-hook='chroot "$1" systemctl enable systemd-networkd systemd-resolved' \
		--customize-hook='chroot "$1" systemctl disable systemd-networkd-wait-online' \
		bookworm "$archive" "$mirror"
}

# make_file_system writes the root file system with the content of the archive $1, and everything that is not from
# packages, to the file $2.
make_file_system() {
	mkdir "$work/root"
	root_files "$work/files"
	# shellcheck disable=SC2016 # the second shell expands the parameters
	as_root sh -euc '
		tar -C "$1" --exclude="./dev/*" -xf "$2"
		cp -R "$3/." "$1/"
		install -m 755 "$4" "$1/usr/bin/kubelet"
		# Each VM generates its own. If the file does not exist, systemd enables units that are disabled in the image.
		: >"$1/etc/machine-id"
		rm -f "$1/etc/hostname"
		# The name servers themselves: Pods cannot reach the stub resolver.
		ln -sf ../run/systemd/resolve/resolv.conf "$1/etc/resolv.conf"
		# GRUB of Debian 12 does not support these features.
		mke2fs -q -F -t ext4 -L root -O ^metadata_csum_seed,^orphan_file -d "$1" "$5" "$6"
	' sh "$work/root" "$1" "$work/files" "$kubelet" "$2" "${root_size}M"
	rm -rf "$work/root"
}

# root_files creates the configuration of the image in the directory $1.
root_files() {
	mkdir -p "$1"/{boot/grub,etc/cloud/cloud.cfg.d,etc/containerd}
	echo 'LABEL=root / ext4 errors=remount-ro 0 1' >"$1/etc/fstab"
	# The links /vmlinuz and /initrd.img lead to the latest kernel. No other terminal is needed: both firmwares print the
	# output of GRUB on the serial port.
	cat >"$1/boot/grub/grub.cfg" <<-'END'
		set timeout=1
		set timeout_style=hidden
		menuentry Debian {
			linux /vmlinuz root=LABEL=root ro console=ttyS0
			initrd /initrd.img
		}
	END
	cat >"$1/etc/cloud/cloud.cfg.d/95_image.cfg" <<-'END'
		datasource_list: [NoCloud, None]
		# Generating locales takes long, and GRUB is not installed as a package.
		locale: false
		grub_dpkg: {enabled: false}
	END
	# The user data sets the same driver in the configuration of the kubelet.
	cat >"$1/etc/containerd/config.toml" <<-'END'
		version = 2
		[plugins."io.containerd.grpc.v1.cri".cni]
		  bin_dir = "/usr/lib/cni"
		[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
		  runtime_type = "io.containerd.runc.v2"
		[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
		  SystemdCgroup = true
	END
}

# loader writes GRUB for the platform $1 to the file $2. It contains its modules, and finds its configuration by the
# label of the file system.
loader() {
	local platform=$1 modules=(configfile ext2 linux normal part_gpt search search_label)
	if [[ $platform == i386-pc ]]; then modules+=(biosdisk); fi
	# shellcheck disable=SC2016 # GRUB expands $root
	printf 'search.fs_label root root\nset prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n' >"$work/early.cfg"
	grub-mkimage -O "$platform" -c "$work/early.cfg" -p /boot/grub -o "$2" "${modules[@]}"
}

# place copies the file $1 to the disk, to the MiB $2.
place() { dd if="$1" of="$work/disk" bs=1M seek="$2" conv=notrunc,sparse status=none; }

# patch writes the little-endian number $1 of $2 bytes to the offset $3 of the file $4.
patch() {
	local number=$1 bytes=''
	for ((i = 0; i < $2; i++)); do
		bytes+=$(printf '\\x%02x' $((number >> 8 * i & 255)))
	done
	printf '%b' "$bytes" | dd of="$4" bs=1 seek=$(($3)) conv=notrunc status=none
}

# make_disk writes the disk with the root file system $1.
make_disk() {
	truncate -s "${size}M" "$work/disk"
	sfdisk --quiet "$work/disk" <<-END
		label: gpt
		14: start=${boot}MiB, size=${boot_size}MiB, type=21686148-6449-6E6F-744E-656564454649
		15: start=${esp}MiB, size=${esp_size}MiB, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B
		1: start=${root}MiB, size=${root_size}MiB, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709
	END
	place "$1" $root
	boot_by_bios
	boot_by_uefi
}

# boot_by_bios does what grub-bios-setup does to a block device: the first sector of the disk loads the first sector of
# GRUB's core image, which loads the rest.
boot_by_bios() {
	loader i386-pc "$work/core.img"
	if (($(stat -c %s "$work/core.img") > boot_size << 20)); then
		echo "GRUB's core image does not fit into ${boot_size} MiB" >&2
		exit 1
	fi
	patch $((boot * sectors + 1)) 8 0x1f4 "$work/core.img" # where the rest is; grub-mkimage has set its size
	place "$work/core.img" $boot
	head -c 440 /usr/lib/grub/i386-pc/boot.img >"$work/boot.img" # the disk's identifier and the partitions follow
	patch $((boot * sectors)) 8 0x5c "$work/boot.img" # where the core image is
	patch 0x9090 2 0x66 "$work/boot.img" # no check for floppy disks
	place "$work/boot.img" 0
}

# boot_by_uefi installs the loader that UEFI starts if its variables do not name another one.
boot_by_uefi() {
	loader x86_64-efi "$work/grub.efi"
	truncate -s "${esp_size}M" "$work/esp"
	mkfs.vfat -n ESP "$work/esp" >/dev/null
	mmd -i "$work/esp" ::EFI ::EFI/BOOT
	mcopy -i "$work/esp" "$work/grub.efi" ::EFI/BOOT/BOOTX64.EFI
	place "$work/esp" $esp
}

install_debian "$work/root.tar" "$@"
make_file_system "$work/root.tar" "$work/root.ext4"
make_disk "$work/root.ext4"
qemu-img convert -f raw -O qcow2 "$work/disk" "$image"
