#!/usr/bin/env bash
# Reports known vulnerabilities in what the programs of some modules call, and fails if there
# are any.
#
#   hack/vulncheck.sh MODULE...
#
# If the database does not answer, as without a network, it says so, and fails nothing.
#
# Environment:
#   GOVULNDB  URL of the database
set -euo pipefail
database=${GOVULNDB:-https://vuln.go.dev}
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/tools/go.mod
check() { go -C "$1" tool -modfile="$tools" govulncheck -db "$database" "${@:2}"; }

# Only if the database answers does the version have the time of its last change.
if [[ $(check . -version) != *'DB updated: '* ]]; then
	echo "vulncheck: $database does not answer, so nothing was checked"
	exit 0
fi
failed=0
for module in "$@"; do
	echo "govulncheck ($module)"
	check "$module" ./... || failed=$?
done
exit "$failed"
