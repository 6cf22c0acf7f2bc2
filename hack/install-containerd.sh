#!/usr/bin/env bash
# Makes sure that containerd, runc and the usual network plug-ins are there, with which tests
# run Pods. A second call finds its work done. It starts no service: tests start containerd.
#
#   hack/install-containerd.sh
#
# As root on a system with apt-get it installs what is missing. Without root, where the tests of
# Pods are skipped, it says so and does nothing.
set -euo pipefail

# shellcheck disable=SC2034 # they are for hack/packages.sh
name=install-containerd
packages=(containerd runc containernetworking-plugins)
# shellcheck source=hack/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

missing() {
	local program
	for program in containerd ctr runc /usr/lib/cni/ptp /usr/lib/cni/host-local /usr/lib/cni/loopback; do
		command -v "$program" >/dev/null || { printf '%s is missing' "$program" && return; }
	done
}

if [[ $EUID -ne 0 && -n $(missing) ]]; then
	say "$(missing); the tests that run Pods take root, and will be skipped"
	exit
fi
install_packages
