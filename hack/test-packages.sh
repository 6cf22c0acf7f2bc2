#!/usr/bin/env bash
# Prints packages of the root module that have tests, a line each.
#
#   hack/test-packages.sh always|kept [PATTERN…]
#
# always  those whose tests have to run each time: they start programs, control planes among them, or draw
#         by lot what they do
# kept    the others: their results depend on nothing but code and files of the module, so go test keeps them
#
# Those that match a pattern of packages come first, in the order of the patterns.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kind=${1:?always or kept} module=$(go list -m)
shift
# What starts programs, or draws, imports one of these itself. So do the packages that other tests use for it.
always="os/exec $module/test/lot"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The tests of a package, as the go command lists them, are NAME.test. What is compiled anew for them has
# their name behind its own.
go list -test -deps -f '{{if not .Standard}}{{.ImportPath}}|{{join .Imports "|"}}||{{join .Deps "|"}}{{end}}' ./... >"$scratch/all"
awk -F '[|]' -v module="$module" -v always="$always" -v kind="$kind" '
	BEGIN { split(always, names, " "); for (i in names) starts[names[i]] }
	index($1, module) == 1 {
		for (i = 2; i <= NF && $i != ""; i++) { if ($i in starts) own[$1] }
		if ($1 ~ /\.test$/) tests[$1] = $0
	}
	END {
		for (test in tests) {
			found = test in own
			n = split(tests[test], deps, "|")
			for (i = 2; i <= n && !found; i++) found = deps[i] in own
			if (found == (kind == "always")) { sub(/\.test$/, "", test); print test }
		}
	}' "$scratch/all" | sort >"$scratch/chosen"

: >"$scratch/first"
for pattern in "$@"; do
	go list "$pattern"
done | awk '!seen[$0]++' | grep -Fxf "$scratch/chosen" >"$scratch/first" || true
cat "$scratch/first"
grep -vFxf "$scratch/first" "$scratch/chosen" || true
