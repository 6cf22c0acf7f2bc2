#!/usr/bin/env bash
# Installs nginx, behind which tests run the page of "millwright ui". If it is installed, it does nothing.
#
#   hack/install-nginx.sh
#
# As root on a system with apt-get, it installs the missing package. Without root, these tests are skipped, so it prints a
# message and does nothing.
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
