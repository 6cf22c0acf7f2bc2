#!/usr/bin/env bash
# Reports functions whose cyclomatic complexity is above the first number, and fails
# if one is above the second. Tests count too: one that branches a lot checks little.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
warn=$1
fail=$2
echo "gocyclo (reported above $warn, rejected above $fail)"

measure() { # exits 1 if there is something to show
    go tool -modfile=tools/go.mod gocyclo -over "$1" -ignore '(^|/)(zz_generated[^/]*|[^/]*\.pb)\.go$|^client/[^/]+/' .
}

measure "$warn" || true
measure "$fail" >/dev/null || {
    echo "complexity: split the functions above $fail" >&2
    exit 1
}
