#!/usr/bin/env bash
# Takes the pictures of the documentation from the test of "millwright ui", which runs in Chromium.
#
#   hack/pictures.sh
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
taken=$(mktemp -d)
trap 'rm -rf "$taken"' EXIT
MILLWRIGHT_TIER=all go test -count=1 -artifacts -outputdir "$taken" ./test/suites/ui
for name in rollout machine; do
	cp "$(find "$taken" -name "$name.png")" "docs/images/ui-$name.png"
done
