#!/usr/bin/env bash
# Reports functions whose cyclomatic complexity exceeds the first number, and fails if one exceeds the second. This
# includes tests: a test with many branches checks little.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
warn=$1
fail=$2
echo "gocyclo (reported above $warn, rejected above $fail)"

measure() { # exits with status 1 if it reports a function
    go tool -modfile=tools/go.mod gocyclo -over "$1" -ignore '(^|/)(zz_generated[^/]*|[^/]*\.pb)\.go$|^client/[^/]+/' .
}

measure "$warn" || true
measure "$fail" >/dev/null || {
    echo "complexity: split the functions whose complexity exceeds $fail" >&2
    exit 1
}
