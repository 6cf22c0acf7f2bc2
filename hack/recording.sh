#!/usr/bin/env bash
# Records "millwright demo --exit" as an animated SVG.
#
#   hack/recording.sh FILE [FLAGS]
#
# The demo runs in a temporary directory, with bin/millwright and examples/. The flags are passed to the demo.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath "$1")
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go -C "$root" build -o "$dir/record" ./hack/record
ln -s "$root/examples" "$dir/examples"
cd "$dir"
PATH=$root/bin:$PATH ./record --out "$out" --columns 118 --rows 32 millwright demo --exit "$@"
