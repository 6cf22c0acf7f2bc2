#!/usr/bin/env bash
# Lists the tests of each tier. A test whose first line calls tier.All runs only in "make test-all".
#
#   hack/test-list.sh                    prints each package with its numbers of tests, and their duration in seconds
#   hack/test-list.sh packages TIER      prints the packages of the root module with tests of a tier ("test" or "all"), slowest
#                                        first
#   hack/test-list.sh record TIER FILE   writes the durations of packages, from the output of go test -json, to hack/test-times.tsv
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
times=hack/test-times.tsv

# tests prints for each package with tests, separated by tabs: its directory, yes if it is in the root module, the
# numbers of tests of "make test" and of those that only "make test-all" runs, and the recorded seconds of both, if
# any.
tests() {
	git ls-files --cached --others --exclude-standard --deduplicate -- '*_test.go' '*/go.mod' ':!:**/testdata/**' | awk -v times="$times" '
		function dir(file) { return sub("/[^/]*$", "", file) ? file : "." }
		function in_root(at) {
			for (; !(at in module); at = dir(at)) if (at == ".") return "yes"
			return "no"
		}
		/\/go\.mod$/ { module[dir($0)]; next }
		{ files[$0] }
		END {
			for (file in files) {
				of = dir(file)
				began = 0
				while ((getline line < file) > 0) {
					if (began) { counts[of, line ~ /^\ttier\.All\(/ ? "all" : "test"]++; any[of] }
					began = line ~ /^func (Test|Fuzz|Example)[A-Za-z0-9_]*\(/ && line !~ /^func TestMain\(/
				}
				close(file)
			}
			while ((getline line < times) > 0) { split(line, took, "\t"); seconds[took[1], took[2]] = took[3] }
			for (of in any)
				printf "%s\t%s\t%d\t%d\t%s\t%s\n", of, in_root(of), counts[of, "test"], counts[of, "all"], seconds[of, "test"], seconds[of, "all"]
		}' | sort
}

list() {
	tests | awk -F '\t' '
		BEGIN { printf "%10s %10s %6s %9s  %s\n", "s (test)", "s (all)", "test", "all only", "package" }
		{ printf "%10s %10s %6d %9d  %s\n", $5, $6, $3, $4, $1; test += $3; all += $4 }
		END { printf "%10s %10s %6d %9d  %s\n", "", "", test, all, "all packages" }'
}

packages() {
	tests | awk -F '\t' -v tier="$1" '$2 == "yes" && (tier == "all" || $3 > 0) { print (tier == "all" ? $6 : $5) "\t./" $1 }' |
		sort -s -rn -k1,1 | cut -f2
}

record() {
	local scratch
	scratch=$(mktemp)
	{
		if [[ -f $times ]]; then awk -F '\t' -v tier="$1" '$2 != tier' "$times"; fi
		sed -nE 's|^\{.*"Action":"(pass\|fail)","Package":"github.com/millwright-dev/millwright/?([^"]*)","Elapsed":([0-9.]+).*|\2\t'"$1"'\t\3|p' "$2"
	} | sort >"$scratch"
	cat "$scratch" >"$times"
	rm -f "$scratch"
}

case ${1:-list} in
list) list ;;
packages) packages "$2" ;;
record) record "$2" "$3" ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
