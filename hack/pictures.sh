#!/usr/bin/env bash
# Takes the pictures of "millwright ui" in Chromium. A test compares the page with them, and the pictures in docs/images are also
# part of the documentation. Look at the differences before you commit them.
#
#   hack/pictures.sh
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
MILLWRIGHT_TIER=all go test -count=1 -run 'TestPage_LooksAsInPictures$' ./internal/ui -update
git status --short docs/images internal/ui/testdata
