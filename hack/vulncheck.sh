#!/usr/bin/env bash
# Reports known vulnerabilities in the code that the programs of some modules call, and fails if there are any.
#
#   hack/vulncheck.sh MODULE...
#
# If the database cannot be reached, for example without a network, it prints a message and does not fail.
#
# Environment:
#   GOVULNDB  URL of the database
set -euo pipefail
database=${GOVULNDB:-https://vuln.go.dev}
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/tools/go.mod
check() { go -C "$1" tool -modfile="$tools" govulncheck -db "$database" "${@:2}"; }

# The version contains the time of the last change only if the database can be reached.
if [[ $(check . -version) != *'DB updated: '* ]]; then
	echo "vulncheck: cannot reach $database, so nothing was checked"
	exit 0
fi
failed=0
for module in "$@"; do
	echo "govulncheck ($module)"
	check "$module" ./... || failed=$?
done
exit "$failed"
