#!/usr/bin/env bash
# Runs the core of Cluster API for a cluster of "millwright up".
#
#   hack/capi-core.sh VERSION [DIR [PORT]]
#
# See hack/capi-manager.sh, which can also run the providers for kubeadm.
set -euo pipefail

exec "$(dirname "${BASH_SOURCE[0]}")/capi-manager.sh" core "$@"
