#!/usr/bin/env bash
# Installs containerd, runc, the standard network plugins and iptables, which tests of Pods use. If they are installed, it
# does nothing. It starts no service: tests start containerd.
#
#   hack/install-containerd.sh
#
# As root on a system with apt-get, it installs missing packages. Without root, the tests of Pods are skipped, so it
# prints a message and does nothing.
set -euo pipefail

# shellcheck disable=SC2034 # used by hack/packages.sh
name=install-containerd
packages=(containerd runc containernetworking-plugins iptables)
# shellcheck source=hack/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

missing() {
	local program
	for program in containerd ctr runc iptables /usr/lib/cni/ptp /usr/lib/cni/host-local /usr/lib/cni/loopback; do
		command -v "$program" >/dev/null || { printf '%s is missing' "$program" && return; }
	done
}

if [[ $EUID -ne 0 && -n $(missing) ]]; then
	log "$(missing); tests that run Pods require root and will be skipped"
	exit
fi
install_packages
