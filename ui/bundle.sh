#!/usr/bin/env bash
# Bundles the page into internal/ui/web, from which the program embeds it. Usage: ui/bundle.sh ESBUILD, where ESBUILD is
# the command that runs esbuild. It needs no network and no Node: the libraries are in ui/vendor.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

out=../internal/ui/web
rm -rf "$out"
mkdir -p "$out"
cp static/* "$out"
"$@" src/main.tsx src/style.css src/console.ts src/console.css --bundle --minify --format=esm --target=es2022 \
    --jsx=automatic --jsx-import-source=preact --outdir="$out" --log-level=warning --legal-comments=none \
    --alias:preact=./vendor/preact/dist/preact.mjs --alias:preact/hooks=./vendor/preact/hooks/dist/hooks.mjs \
    --alias:preact/jsx-runtime=./vendor/preact/jsx-runtime/dist/jsxRuntime.mjs \
    --alias:@xterm/xterm=./vendor/@xterm/xterm/lib/xterm.mjs --alias:@xterm/addon-fit=./vendor/@xterm/addon-fit/lib/addon-fit.mjs
mv "$out/style.css" "$out/main.css"
for library in preact @xterm/xterm @xterm/addon-fit; do
    printf '%s\n\n' "$library"
    cat "vendor/$library/LICENSE"
    printf '\n'
done >"$out/licenses.txt"
