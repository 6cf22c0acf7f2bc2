#!/usr/bin/env bash
# Installs Chromium, in which tests of the page of "millwright ui" run. If it is installed, it does nothing.
#
#   hack/install-chromium.sh
#
# As root on a system with apt-get, it installs missing packages. Without root, these tests are skipped, so it prints a
# message and does nothing.
set -euo pipefail

# shellcheck disable=SC2034 # used by hack/packages.sh
name=install-chromium
packages=(chromium fonts-dejavu-core)
# shellcheck source=hack/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

missing() {
	command -v chromium >/dev/null || printf 'chromium is missing'
}

if [[ $EUID -ne 0 && -n $(missing) ]]; then
	log "$(missing); tests that use a browser will be skipped"
	exit
fi
install_packages
