#!/usr/bin/env bash
# Checks that all generated files are up to date, then lints. It compares the tree before and after instead of with
# the last commit, so that the result is the same in a clean clone and with uncommitted changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fingerprint() {
    git ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' file; do
            if [[ -f "$file" ]]; then sha256sum -- "$file"; fi
        done
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
start=$SECONDS

fingerprint >"$scratch/before"
make --no-print-directory generate tidy fmt
fingerprint >"$scratch/after"
if ! diff "$scratch/before" "$scratch/after" >"$scratch/diff"; then
    echo 'verify: make generate, tidy or fmt changed these files; review and commit them:' >&2
    sed -n 's/^[<>] [0-9a-f]*  /  /p' "$scratch/diff" | sort -u >&2
    exit 1
fi

make --no-print-directory lint layers
echo "verify: all checks passed after $((SECONDS - start)) s"
