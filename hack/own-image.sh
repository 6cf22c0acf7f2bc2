#!/usr/bin/env bash
# Builds the image of examples/own-image with the kubelet of the control plane in a cache directory, and prints that
# directory on stdout; progress goes to stderr.
#
#   hack/own-image.sh
#
# The directory (see hack/cache.sh) contains:
#   worker.qcow2   the image, which also contains ifupdown, for tests of cloud-init's renderers
# A second call needs no network.
#
# It needs Debian or a derivative. As root, it installs the packages that examples/own-image/build.sh needs.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
recipe=$repository/examples/own-image/build.sh
added=(ifupdown)
controlplane=$("$repository/hack/controlplane.sh")

kind=own-image
# shellcheck source=hack/cache.sh
source "$repository/hack/cache.sh"

complete() { [[ -s $1/worker.qcow2 ]]; }

# install_tools installs the packages that the comment of the recipe lists.
install_tools() {
	local packages
	read -ra packages < <(sed -n 's/^#   apt-get install //p' "$recipe")
	if dpkg-query --show "${packages[@]}" >/dev/null 2>&1; then return; fi
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		fail "tools are missing; install them with: sudo apt-get install --yes --no-install-recommends ${packages[*]}"
	fi
	log "installing ${packages[*]}"
	DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install --yes -qq --no-install-recommends "${packages[@]}" >&2
}

build() {
	install_tools
	log "installing Debian in the image"
	"$recipe" "$controlplane/kubernetes" "$1/worker.qcow2" "${added[@]}" >&2
}

cached "$({ basename "$(readlink -f "$controlplane")" && cat "$recipe" "${BASH_SOURCE[0]}"; } | hash_of_input)" complete build
