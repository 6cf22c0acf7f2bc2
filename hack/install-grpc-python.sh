#!/usr/bin/env bash
# Makes sure that Python has gRPC and the generator of its stubs, with which a test runs the example
# examples/python-driver. A second call finds its work done.
#
#   hack/install-grpc-python.sh
#
# As root on a system with apt-get it installs what is missing. Otherwise, where the test is skipped,
# it says so and does nothing.
set -euo pipefail

packages=(python3-grpcio python3-grpc-tools python3-protobuf)

say() { printf '%s\n' "install-grpc-python: $*" >&2; }

# usable asks the distribution's Python, which is not always the first one in the path.
usable() { /usr/bin/python3 -c 'import google.protobuf, grpc, grpc_tools.protoc' 2>/dev/null; }

main() {
	if usable; then
		say "up to date"
		return
	fi
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		say "Python's gRPC is missing, so the test of the driver in Python will be skipped"
		say "install it with: apt-get install --yes --no-install-recommends ${packages[*]}"
		return
	fi
	say "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
	apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends -qq "${packages[@]}" >&2
	if ! usable; then
		say "installed, but /usr/bin/python3 cannot import it"
		exit 1
	fi
	say "done"
}

main
