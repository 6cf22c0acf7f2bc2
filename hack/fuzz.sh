#!/usr/bin/env bash
# Runs every fuzz test of some modules, one after the other, and lists those that failed.
#
#   hack/fuzz.sh TIME PATTERN MODULE...
#
# TIME is how long each runs, such as 10m; PATTERN is a regular expression of the names
# PACKAGE.FuzzXxx to run, empty for all. An input that breaks a test is kept below the
# package's testdata/fuzz, and is a case of the ordinary tests from then on. Inputs that
# reached new code are kept in the cache of the go command.
#
# Environment:
#   FUZZ_PARALLEL  how many inputs are tried at the same time; by default, as many as
#                  there are processors
set -euo pipefail
time=${1:?how long each fuzz test runs} pattern=$2 modules=("${@:3}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# tests prints the directory and the name of each fuzz test of a module.
tests() {
	git -C "$1" grep -oE --untracked '^func Fuzz[[:alnum:]_]*\(' -- '*_test.go' |
		sed -nE 's|^(.*/)?[^/]+_test\.go:func (Fuzz[[:alnum:]_]*)\($|./\1 \2|p' | sort -u
}

# inner reports whether a directory of a module belongs to another module inside it.
inner() {
	local folder=$1/$2
	until [[ -f $folder/go.mod ]]; do folder=$(dirname "$folder"); done
	[[ $(realpath "$folder") != "$(realpath "$1")" ]]
}

failed=() ran=0
for module in "${modules[@]}"; do
	while read -r folder name; do
		if inner "$module" "$folder"; then continue; fi
		test=$(realpath --relative-to=. "$module/$folder").$name
		[[ $test =~ $pattern ]] || continue
		ran=$((ran + 1))
		# All imports of a test are rebuilt with coverage: minutes for Kubernetes' packages, in which the go command
		# prints nothing.
		echo "fuzz: building $test"
		go -C "$module" test -c -o /dev/null -vet=off -fuzz="^$name\$" "$folder" || { failed+=("$test"); continue; }
		echo "fuzz: $test for $time"
		go -C "$module" test -vet=off -run='^$' -fuzz="^$name\$" -fuzztime="$time" -fuzzminimizetime=5s \
			${FUZZ_PARALLEL:+-parallel="$FUZZ_PARALLEL"} "$folder" || failed+=("$test")
	done < <(tests "$module")
done
((ran > 0)) || { echo "fuzz: no fuzz test matches $pattern" >&2; exit 1; }
if ((${#failed[@]})); then
	printf 'fuzz: these of %d failed:\n' "$ran" >&2
	printf '  %s\n' "${failed[@]}" >&2
	exit 1
fi
echo "fuzz: $ran fuzz tests found nothing"
