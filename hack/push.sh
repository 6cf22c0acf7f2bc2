#!/usr/bin/env bash
# Pushes the images and the chart of a release page, which hack/release.sh has written.
#
#   hack/push.sh DIRECTORY VERSION IMAGE HYPERVISOR_IMAGE
#
# The images become IMAGE:VERSION and HYPERVISOR_IMAGE:VERSION. The chart is pushed next to IMAGE: for
# registry.example.com/team/millwright, it becomes registry.example.com/team/charts/millwright, from which Helm installs it
# with the version without "v". The credentials are those that a login of Docker, Podman or crane has saved.
set -euo pipefail

directory=${1:?directory of the release pages is required} given=${2:?version is required}
image=${3:?container image is required} hypervisor_image=${4:?image of hypervisors is required}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=$("$repository/hack/version.sh" "$given")
number=${version#v}

fail() {
	echo "push: $*" >&2
	exit 1
}

[[ $image == */* ]] || fail "image $image must have the form REGISTRY/NAME or REGISTRY/PATH/NAME"
page=$(cd "$directory/$version" 2>/dev/null && pwd) || fail "$directory/$version does not exist; run make release VERSION=$version"
(cd "$page" && sha256sum --check --quiet SHA256SUMS >&2) || fail "files of $page were changed; run make release VERSION=$version"
unset GOOS GOARCH
export CGO_ENABLED=0 GOWORK=off GOFLAGS="-buildvcs=false -trimpath"
go -C "$repository/hack/image" run ./push \
	"$page/millwright-image_$number.oci.tar.gz" "$image:$version" \
	"$page/millwright-hypervisor-image_$number.oci.tar.gz" "$hypervisor_image:$version" \
	"$page/millwright-chart_$number.tgz" "${image%/*}/charts/millwright:${number//+/_}"
