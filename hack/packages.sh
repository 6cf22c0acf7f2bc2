# Installs what the distribution has. To be sourced, by scripts that are the steps of make:
#
#   name=install-NAME               begins what is said
#   packages=(PACKAGE…)             has what is missing
#   missing() { … }                 prints what is missing, in a few words; nothing if all is there
#   # shellcheck source=hack/packages.sh
#   source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"
#   install_packages
#
# As root on a system with apt-get it installs what is missing. Everywhere else it prints the command that
# does so, and fails. It starts no service: not every machine that runs tests wants one.

say() { printf '%s\n' "$name: $*" >&2; }

explain() {
	say "$1"
	say "install it with: apt-get update && apt-get install --yes --no-install-recommends ${packages[*]}"
	if [[ $EUID -ne 0 ]]; then say "(as root, for example through sudo)"; fi
	exit 1
}

# no_start_of_services has the packages' scripts start nothing.
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
		say "up to date"
		return
	fi
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then explain "$lacks"; fi
	say "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	no_start_of_services
	apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
	apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends -qq "${packages[@]}" >&2
	lacks=$(missing)
	if [[ -n $lacks ]]; then
		say "installed, but $lacks"
		exit 1
	fi
	say "done"
}
