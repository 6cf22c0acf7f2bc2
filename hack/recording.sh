#!/usr/bin/env bash
# Records "millwright demo --exit" as an animated SVG.
#
#   hack/recording.sh FILE [FLAGS]
#
# The demo runs in a folder of its own, with bin/millwright and examples/; the flags are given
# to it, too.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath "$1")
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
go -C "$root" build -o "$folder/record" ./hack/record
ln -s "$root/examples" "$folder/examples"
cd "$folder"
PATH=$root/bin:$PATH ./record --out "$out" --columns 118 --rows 32 millwright demo --exit "$@"
