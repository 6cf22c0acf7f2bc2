#!/usr/bin/env bash
# Builds the manager's container image without a container engine: the image contains the program, which needs no
# libraries, and root certificates. With --hypervisor, it builds the image of hypervisors, for linux/amd64 only,
# which also contains QEMU from Debian packages; see hack/hypervisor.sh.
#
#   hack/image.sh [--push] [--hypervisor] DIRECTORY VERSION IMAGE [PLATFORM...]
#
# DIRECTORY becomes an OCI layout with the image for each PLATFORM, such as linux/arm64. The default is the platform
# of this machine. VERSION and IMAGE are those of hack/clusterctl.sh, which writes the manifests that refer to this
# image. With --push, the image is also pushed to IMAGE:VERSION, with the credentials that a login of Docker, Podman
# or crane has saved. DIRECTORY.sbom contains a software bill of materials for each program, in CycloneDX format.
# The same sources and compiler result in the same image.
#
# Environment:
#   SOURCE_DATE_EPOCH  time of the image in seconds since 1970; by default, the time of
#                      the commit
set -euo pipefail

push=() hypervisor=
while [[ ${1:-} == --* ]]; do
	case $1 in
	--push) push=(--push) ;;
	--hypervisor) hypervisor=yes ;;
	*)
		echo "image: unknown flag $1" >&2
		exit 1
		;;
	esac
	shift
done
directory=${1:?output directory is required} given=${2:?version is required} image=${3:?container image is required}
platforms=("${@:4}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

unset GOOS GOARCH
export CGO_ENABLED=0 GOWORK=off GOFLAGS="-buildvcs=false -trimpath"

fail() {
	echo "image: $*" >&2
	exit 1
}

[[ ${image##*/} != *[:@]* ]] || fail "image $image must not have a tag or a digest; its tag is the version"
version=$("$repository/hack/version.sh" "$given")
directory=$(realpath -m "$directory")
# Without a repository, the revision is unknown and left out.
revision=$(git -C "$repository" describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null) || revision=
created=${SOURCE_DATE_EPOCH:-$(git -C "$repository" log -1 --format=%ct 2>/dev/null)} || created=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

base=()
if [[ -n $hypervisor ]]; then
	if ((${#platforms[@]} == 0)); then platforms=(linux/amd64); fi
	[[ ${platforms[*]} == linux/amd64 ]] || fail "the image of hypervisors supports only linux/amd64, not ${platforms[*]}"
	files=$("$repository/hack/hypervisor.sh")
	base=(--base "$files/root" --packages "$files/packages")
fi
built=$("$repository/hack/programs.sh" "$scratch" "$version" "${platforms[@]}")
mapfile -t programs <<<"$built"

digest=$(go -C "$repository/hack/image" run . --layout "$directory" --reference "$image:$version" \
	--sbom "$directory.sbom" --revision "$revision" --created "${created:-0}" "${base[@]}" "${push[@]}" "${programs[@]}")
echo "$directory: $image:$version for ${programs[*]%%=*}"
echo "$directory.sbom: bills of materials"
if ((${#push[@]})); then
	echo "pushed as $image@$digest"
else
	echo "$digest"
	echo "Push it with one of:"
	echo "  make ${hypervisor:+hypervisor-}image IMAGE_PUSH=1 (and the same variables)"
	echo "  crane push $directory $image:$version"
	echo "  skopeo copy --all oci:$directory:$version docker://$image:$version"
fi
