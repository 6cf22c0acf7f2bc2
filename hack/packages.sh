# Installs packages from the distribution. Source it from scripts that are steps of make:
#
#   name=install-NAME               prefix of messages
#   packages=(PACKAGE…)             packages to install
#   missing() { … }                 describes what is missing in a few words; prints nothing if nothing is
#   # shellcheck source=hack/packages.sh
#   source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"
#   install_packages
#
# As root on a system with apt-get, it installs missing packages. Otherwise, it prints the command that installs
# them, and fails. It starts no services, because not every machine that runs tests should run them.

log() { printf '%s\n' "$name: $*" >&2; }

explain() {
	log "$1"
	log "install it with: apt-get update && apt-get install --yes --no-install-recommends ${packages[*]}"
	if [[ $EUID -ne 0 ]]; then log "(as root, for example through sudo)"; fi
	exit 1
}

# no_start_of_services prevents the packages' scripts from starting services.
no_start_of_services() {
	[[ ! -e /usr/sbin/policy-rc.d ]] || return 0
	printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
	chmod 755 /usr/sbin/policy-rc.d
	trap 'rm -f /usr/sbin/policy-rc.d' EXIT
}

install_packages() {
	local lacks
	lacks=$(missing)
	if [[ -z $lacks ]]; then
		log "up to date"
		return
	fi
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then explain "$lacks"; fi
	log "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	no_start_of_services
	apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
	apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends -qq "${packages[@]}" >&2
	lacks=$(missing)
	if [[ -n $lacks ]]; then
		log "installed, but $lacks"
		exit 1
	fi
	log "done"
}
