#!/usr/bin/env bash
# Installs Prometheus, in which a test runs the queries of the dashboard. If it is installed, it does nothing.
#
#   hack/install-prometheus.sh
#
# As root on a system with apt-get, it installs the missing package. Without root, the test is skipped, so it prints
# a message and does nothing.
set -euo pipefail

# shellcheck disable=SC2034 # used by hack/packages.sh
name=install-prometheus
packages=(prometheus)
# shellcheck source=hack/packages.sh
source "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

missing() { command -v prometheus >/dev/null || printf 'Prometheus is missing'; }

if [[ -n $(missing) && $EUID -ne 0 ]]; then
	log "$(missing); the test of the dashboard requires it and will be skipped"
	exit 0
fi
install_packages
