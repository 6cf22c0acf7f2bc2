#!/usr/bin/env bash
# Installs nginx, unless it is installed. Tests run the page of "millwright ui" behind it.
#
#   hack/install-nginx.sh
#
# Installing the package requires root and apt-get. Without root, this program only prints a message, and the tests are skipped.
set -euo pipefail

# shellcheck disable=SC2034 # used by hack/packages.sh
name=install-nginx
packages=(nginx)
# shellcheck source=hack/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

missing() { [[ -x /usr/sbin/nginx ]] || command -v nginx >/dev/null || printf 'nginx is missing'; }

if [[ -n $(missing) && $EUID -ne 0 ]]; then
	log "$(missing); tests behind a proxy require it and will be skipped"
	exit 0
fi
install_packages
