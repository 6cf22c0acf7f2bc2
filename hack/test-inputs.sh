#!/usr/bin/env bash
# Prints, as assignments for a shell, the inputs of tests other than the code of the module and the files that they
# read directly. The go command knows those and caches the results of tests while they stay the same.
#
#   eval "$(hack/test-inputs.sh)"
#
#   programs           installed and built software: distribution, kernel, control plane, guests
#   MILLWRIGHT_SOURCES the content of all files of the repository; for repository.DependOnAllFiles
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name() { sha256sum | cut -c1-16; }

# An unknown input differs in each run.
unknown() { date +%s.%N; }

programs() {
	dpkg-query -W 2>/dev/null || unknown
	uname -rm
	ls /dev/kvm /dev/loop-control /dev/net/tun 2>/dev/null || true
	id -u
	nproc
	printf '%s\n' "${KUBERNETES_BINARIES:-}" "${MILLWRIGHT_CACHE:-}" "${MILLWRIGHT_CAPI:-}" "$PATH"
	readlink "${MILLWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/millwright}"/*/current || true
}

# sources prints the hashes of all files.
sources() {
	git rev-parse --git-dir >/dev/null 2>&1 || unknown
	# A deleted file that is still in the index is listed by name only.
	git ls-files -z --cached --others --exclude-standard 2>/dev/null | sort -z | xargs -0 sha256sum 2>&1 || true
}

printf "programs='%s'\n" "$(programs | name)"
printf "export MILLWRIGHT_SOURCES='%s'\n" "$({ pwd && sources; } | name)"
