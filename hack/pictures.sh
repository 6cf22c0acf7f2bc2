#!/usr/bin/env bash
# Takes the pictures of "millwright ui", of which those in docs/images are in the documentation. A test compares the page with
# them, in Chromium. Look at the differences before you commit them.
#
#   hack/pictures.sh
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
MILLWRIGHT_TIER=all go test -count=1 -run 'TestPage_LooksAsInPictures$' ./internal/ui -update
git status --short docs/images internal/ui/testdata
