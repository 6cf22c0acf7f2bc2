#!/usr/bin/env bash
# Runs all fuzz tests of some modules, one after another, and lists those that failed.
#
#   hack/fuzz.sh TIME PATTERN MODULE...
#
# TIME is the duration of each test, such as 10m. PATTERN is a regular expression of the names PACKAGE.FuzzXxx to
# run; if empty, all are run. An input that breaks a test is saved in the package's testdata/fuzz, and then becomes
# a case of the ordinary tests. Inputs that reached new code are kept in the cache of the go command.
#
# Environment:
#   FUZZ_PARALLEL  number of inputs to try at the same time; by default, the number of
#                  processors
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
	local dir=$1/$2
	until [[ -f $dir/go.mod ]]; do dir=$(dirname "$dir"); done
	[[ $(realpath "$dir") != "$(realpath "$1")" ]]
}

failed=() ran=0
for module in "${modules[@]}"; do
	while read -r dir name; do
		if inner "$module" "$dir"; then continue; fi
		test=$(realpath --relative-to=. "$module/$dir").$name
		[[ $test =~ $pattern ]] || continue
		ran=$((ran + 1))
		# All imports of a test are rebuilt with coverage. For Kubernetes' packages, this takes minutes without any
		# output from the go command.
		echo "fuzz: building $test"
		go -C "$module" test -c -o /dev/null -vet=off -fuzz="^$name\$" "$dir" || { failed+=("$test"); continue; }
		echo "fuzz: $test for $time"
		go -C "$module" test -vet=off -run='^$' -fuzz="^$name\$" -fuzztime="$time" -fuzzminimizetime=5s \
			${FUZZ_PARALLEL:+-parallel="$FUZZ_PARALLEL"} "$dir" || failed+=("$test")
	done < <(tests "$module")
done
((ran > 0)) || { echo "fuzz: no fuzz test matches $pattern" >&2; exit 1; }
if ((${#failed[@]})); then
	printf 'fuzz: %d tests ran, and these failed:\n' "$ran" >&2
	printf '  %s\n' "${failed[@]}" >&2
	exit 1
fi
echo "fuzz: $ran fuzz tests found no failures"
