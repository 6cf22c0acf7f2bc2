#!/usr/bin/env bash
# Installs cloud-init, with which a test renders the network configuration of guests. If it is installed, it does
# nothing. Otherwise, cloud-init is disabled, so that it does not configure this machine.
#
#   hack/install-cloud-init.sh
#
# As root on a system with apt-get, it installs the missing package. Without root, the test is skipped, so it prints
# a message and does nothing.
set -euo pipefail

# shellcheck disable=SC2034 # used by hack/packages.sh
name=install-cloud-init
packages=(cloud-init)
# shellcheck source=hack/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

missing() { command -v cloud-init >/dev/null || printf 'cloud-init is missing'; }

if [[ -n $(missing) ]]; then
	if [[ $EUID -ne 0 ]]; then
		log "$(missing); the test of its network configuration requires it and will be skipped"
		exit 0
	fi
	mkdir -p /etc/cloud
	touch /etc/cloud/cloud-init.disabled
fi
install_packages
