#!/usr/bin/env bash
# Builds the program of the container image for each platform, and prints PLATFORM=FILE for each.
#
#   hack/programs.sh DIRECTORY VERSION [PLATFORM...]
#
# The files are written to DIRECTORY. A PLATFORM is linux/amd64 or linux/arm64, or darwin/amd64 or darwin/arm64 for the
# commands that only use a cluster. The default is the platform of this machine. The caller's settings have no effect:
# the same sources and compiler result in the same files.
#
# Environment:
#   MILLWRIGHT_ARCHIVES  checksums of the archives of the same release, which only programs for linux/amd64 can use:
#                        controlplane=SHA256,guest=SHA256,...
set -euo pipefail

directory=${1:?output directory is required} version=${2:?version is required}
platforms=("${@:3}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

unset GOOS GOARCH
export CGO_ENABLED=0 GOWORK=off GOFLAGS=-buildvcs=false GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT=

if ((${#platforms[@]} == 0)); then platforms=("linux/$(go env GOHOSTARCH)"); fi
for platform in "${platforms[@]}"; do
	case $platform in
	linux/amd64 | linux/arm64 | darwin/amd64 | darwin/arm64) ;;
	*)
		echo "programs: unsupported platform $platform; use linux/amd64, linux/arm64, darwin/amd64 or darwin/arm64" >&2
		exit 1
		;;
	esac
	echo "programs: building for $platform" >&2
	binary=$directory/${platform//\//-} archives=
	if [[ $platform == linux/amd64 && -n ${MILLWRIGHT_ARCHIVES:-} ]]; then archives=" -X main.archives=$MILLWRIGHT_ARCHIVES"; fi
	MAKEFLAGS='' GOOS=${platform%/*} GOARCH=${platform#*/} make --silent -C "$repository" build \
		VERSION="$version" BINARY="$binary" LDFLAGS="-s -w$archives" >&2
	echo "$platform=$binary"
done
