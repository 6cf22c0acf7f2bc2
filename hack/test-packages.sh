#!/usr/bin/env bash
# Prints the packages of the root module, a line each, with how they are tested:
#
#   hack/test-packages.sh [PATTERN…]
#
#   always PACKAGE  its tests have to run each time: they start programs, depend on the kernel, or draw something
#   kept PACKAGE    its results depend on code and files of the module only, so go test keeps them
#
# Those that match a pattern of packages come first, in the order of the patterns.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A package of the module that imports one of these makes the tests that use it run each time.
module=$(go list -m)
always="os/exec syscall golang.org/x/sys/unix math/rand math/rand/v2 pgregory.net/rapid
	$module/test/lot $module/test/smallfs $module/test/blockdev"

# The tests of a package, as the go command lists them, are PACKAGE.test. What is compiled anew for them has
# their name behind its own.
{
	go list "$@" ./...
	echo
	go list -test -deps -f '{{if not .Standard}}{{.ImportPath}}|{{join .Imports "|"}}||{{join .Deps "|"}}{{end}}' ./...
} | awk -F '[|]' -v module="$module" -v always="$always" '
	BEGIN { split(always, names, /[ \n\t]+/); for (i in names) reason[names[i]] }
	!listed && $0 == "" { listed = 1 }
	!listed { if (!seen[$0]++) order[++packages] = $0; next }
	index($1, module) == 1 {
		for (i = 2; i <= NF && $i != ""; i++) if ($i in reason) own[$1]
		if ($1 ~ /\.test$/) tests[substr($1, 1, length($1) - 5)] = $0
	}
	END {
		for (p = 1; p <= packages; p++) {
			package = order[p]
			if (!(package in tests)) continue
			kind = "kept"
			n = split(tests[package], deps, "|")
			for (i = 1; i <= n; i++) if (deps[i] in own) kind = "always"
			print kind, package
		}
	}'
