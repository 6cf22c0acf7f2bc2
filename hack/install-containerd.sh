#!/usr/bin/env bash
# Makes sure that containerd, runc and the usual network plug-ins are there, with which tests
# run Pods. A second call finds its work done. It starts no service: tests start containerd.
#
#   hack/install-containerd.sh
#
# As root on a system with apt-get it installs what is missing. Without root, where the tests of
# Pods are skipped, it says so and does nothing.
set -euo pipefail

programs=(containerd ctr runc /usr/lib/cni/ptp /usr/lib/cni/host-local /usr/lib/cni/loopback)
packages=(containerd runc containernetworking-plugins)

say() { printf '%s\n' "install-containerd: $*" >&2; }

missing() {
	local program
	for program in "${programs[@]}"; do
		command -v "$program" >/dev/null || { printf '%s\n' "$program" && return; }
	done
}

# no_start_of_services has the packages' scripts start nothing: not every machine that runs
# tests wants a container engine.
no_start_of_services() {
	[[ ! -e /usr/sbin/policy-rc.d ]] || return 0
	printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
	chmod 755 /usr/sbin/policy-rc.d
	trap 'rm -f /usr/sbin/policy-rc.d' EXIT
}

main() {
	local lacks
	lacks=$(missing)
	if [[ -z $lacks ]]; then
		say "up to date"
		return
	fi
	if [[ $EUID -ne 0 ]]; then
		say "$lacks is missing; the tests that run Pods take root, and will be skipped"
		return
	fi
	if ! command -v apt-get >/dev/null; then
		say "$lacks is missing, and so is apt-get"
		exit 1
	fi
	say "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	no_start_of_services
	apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
	apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends -qq "${packages[@]}" >&2
	lacks=$(missing)
	if [[ -n $lacks ]]; then
		say "installed, but $lacks is still missing"
		exit 1
	fi
	say "done: $(containerd --version), $(runc --version | head -n 1)"
}

main
