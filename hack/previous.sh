#!/usr/bin/env bash
# Builds the program of the previous version from the history of the repository, for tests of different versions that work
# together, and prints the directory with it on stdout; progress goes to stderr.
#
#   hack/previous.sh
#
# The previous version is the commit in hack/previous.txt: the latest release, or a commit that stands for it. The directory
# (see hack/cache.sh) contains:
#   millwright  the program
#   crd/        its CRDs
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
kind=previous
# shellcheck source=hack/cache.sh
source "$repository/hack/cache.sh"
commit=$(<"$repository/hack/previous.txt")

git -C "$repository" cat-file -e "$commit^{commit}" 2>/dev/null ||
	fail "commit $commit is not in this clone; get it with: git fetch --depth 1 origin $commit"

complete() { [[ -x $1/millwright && -d $1/crd ]]; }

build() {
	log "compiling $commit"
	mkdir "$1/sources"
	git -C "$repository" archive "$commit" | tar -x -C "$1/sources"
	go -C "$1/sources" build -trimpath -ldflags '-s -w -X main.version=previous' -o "$1/millwright" ./cmd/millwright
	cp -r "$1/sources/config/crd" "$1/crd"
	rm -r "$1/sources"
}

input_hash() {
	{
		go env GOVERSION GOOS GOARCH GOAMD64 GOARM64 GOEXPERIMENT
		echo "$commit"
	} | hash_of_input
}

cached "$(input_hash)" complete build
