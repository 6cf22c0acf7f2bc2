#!/usr/bin/env bash
# Builds the manager's container image. That takes no container engine: the image holds
# the program, which needs no libraries, and root certificates. With --hypervisor it is the
# image of hypervisors, for linux/amd64 only, with QEMU from packages of Debian besides: see
# hack/hypervisor.sh.
#
#   hack/image.sh [--push] [--hypervisor] DIRECTORY VERSION IMAGE [PLATFORM...]
#
# DIRECTORY becomes an OCI layout with the image, for each PLATFORM, such as linux/arm64;
# for the one of this machine if none is given. VERSION and IMAGE are those of
# hack/release.sh, which writes the manifests that refer to this image. With --push it is
# also pushed to IMAGE:VERSION, with the credentials that a login of Docker, Podman or crane
# has left. DIRECTORY.sbom gets a software bill of materials of each program, in the format
# CycloneDX. The same sources and compiler make the same image, wherever and whenever.
#
# Environment:
#   SOURCE_DATE_EPOCH  when the image was made, in seconds since 1970; by default, when
#                      the commit was
set -euo pipefail

push=() hypervisor=
while [[ ${1:-} == --* ]]; do
	case $1 in
	--push) push=(--push) ;;
	--hypervisor) hypervisor=yes ;;
	*)
		echo "image: there is no flag $1" >&2
		exit 1
		;;
	esac
	shift
done
directory=${1:?which folder to write to} given=${2:?which version} image=${3:?which container image}
platforms=("${@:4}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

unset GOOS GOARCH
export CGO_ENABLED=0 GOWORK=off GOFLAGS="-buildvcs=false -trimpath"

fail() {
	echo "image: $*" >&2
	exit 1
}

[[ ${image##*/} != *[:@]* ]] || fail "the image $image has a tag or a digest; its tag is to be the version"
version=$("$repository/hack/version.sh" "$given")
directory=$(realpath -m "$directory")
# What is not known, in sources without a repository, is not said.
revision=$(git -C "$repository" describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null) || revision=
created=${SOURCE_DATE_EPOCH:-$(git -C "$repository" log -1 --format=%ct 2>/dev/null)} || created=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

base=()
if [[ -n $hypervisor ]]; then
	if ((${#platforms[@]} == 0)); then platforms=(linux/amd64); fi
	[[ ${platforms[*]} == linux/amd64 ]] || fail "the image of hypervisors is for linux/amd64 only, not for ${platforms[*]}"
	files=$("$repository/hack/hypervisor.sh")
	base=(--base "$files/root" --packages "$files/packages")
fi
built=$("$repository/hack/programs.sh" "$scratch" "$version" "${platforms[@]}")
mapfile -t programs <<<"$built"

digest=$(go -C "$repository/hack/image" run . --layout "$directory" --reference "$image:$version" \
	--sbom "$directory.sbom" --revision "$revision" --created "${created:-0}" "${base[@]}" "${push[@]}" "${programs[@]}")
echo "$directory: $image:$version for ${programs[*]%%=*}"
echo "$directory.sbom: what it is made of"
if ((${#push[@]})); then
	echo "pushed as $image@$digest"
else
	echo "$digest"
	echo "Push it with one of"
	echo "  make ${hypervisor:+hypervisor-}image IMAGE_PUSH=1 (and what else was set)"
	echo "  crane push $directory $image:$version"
	echo "  skopeo copy --all oci:$directory:$version docker://$image:$version"
fi
