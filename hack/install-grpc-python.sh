#!/usr/bin/env bash
# Installs gRPC for Python and the generator of its stubs, which a test of the example examples/python-driver uses.
# If they are installed, it does nothing.
#
#   hack/install-grpc-python.sh
#
# As root on a system with apt-get, it installs missing packages. Otherwise, the test is skipped, so it prints a
# message and does nothing.
set -euo pipefail

packages=(python3-grpcio python3-grpc-tools python3-protobuf)

log() { printf '%s\n' "install-grpc-python: $*" >&2; }

# usable checks the distribution's Python, which may not be the first one in PATH.
usable() { /usr/bin/python3 -c 'import google.protobuf, grpc, grpc_tools.protoc' 2>/dev/null; }

main() {
	if usable; then
		log "up to date"
		return
	fi
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		log "gRPC for Python is missing, so the test of the Python driver will be skipped"
		log "install it with: apt-get install --yes --no-install-recommends ${packages[*]}"
		return
	fi
	log "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
	apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends -qq "${packages[@]}" >&2
	if ! usable; then
		log "installed, but /usr/bin/python3 cannot import it"
		exit 1
	fi
	log "done"
}

main
