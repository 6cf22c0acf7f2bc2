#!/usr/bin/env bash
# Generates the typed clients of the module client from the types of the module api, and from their CRDs, which
# define for the fake clients how server-side apply merges lists.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
api=github.com/millwright-dev/millwright/api
client=github.com/millwright-dev/millwright/client
groups=(infrastructure/v1alpha1 machine/v1alpha1 vm/v1alpha1)

# Each generator runs in the module api, because it only needs to find the types.
generate() { # NAME DIRECTORY ARGUMENTS
    local name=$1 dir=$2
    shift 2
    rm -rf "client/$dir"
    go -C api tool -modfile="$root/tools/go.mod" "$name" \
        --output-dir "$root/client/$dir" --output-pkg "$client/$dir" "$@"
}

schema=$(mktemp)
trap 'rm -f "$schema"' EXIT
go run ./hack/openapi config/crd/*.yaml >"$schema"

packages=("${groups[@]/#/$api/}")
generate applyconfiguration-gen applyconfiguration "${packages[@]}" --openapi-schema "$schema"
generate client-gen clientset --clientset-name versioned --input-base "$api" "${groups[@]/#/--input=}" \
    --apply-configuration-package "$client/applyconfiguration"
generate lister-gen listers "${packages[@]}"
generate informer-gen informers "${packages[@]}" \
    --versioned-clientset-package "$client/clientset/versioned" --listers-package "$client/listers"
