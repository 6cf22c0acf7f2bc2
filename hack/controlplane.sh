#!/usr/bin/env bash
# Builds the control plane's executable from controlplane/ in a cache directory and prints that directory on stdout;
# progress goes to stderr.
#
#   hack/controlplane.sh [kubeadm]
#
# The directory (see hack/cache.sh) contains the executable `kubernetes` and links with the names of its programs:
# kube-apiserver, etcd, kube-controller-manager, kube-scheduler, kubelet, kube-proxy and kubectl. With the argument
# kubeadm, a separate directory also contains kubeadm.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source_dir=$repository/controlplane
programs=(etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
tick=10 # seconds between two lines of progress without a terminal
kind=controlplane tags=
if [[ ${1:-} == kubeadm ]]; then
	kind=controlplane-kubeadm tags=kubeadm
	programs+=(kubeadm)
fi
# shellcheck source=hack/cache.sh
source "$repository/hack/cache.sh"

# progress shows one line that replaces itself on a terminal. Without a terminal, it prints plain lines, at most one
# every $tick seconds.
last_line=-1000
progress() {
	if [[ -t 2 ]]; then
		printf '\r\033[Kcontrolplane: %s (%s)' "$1" "$(elapsed)" >&2
	elif ((SECONDS - last_line >= tick)); then
		last_line=$SECONDS
		log "$1 ($(elapsed))"
	fi
}

end_progress() { if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi; }

# version_flags prints the linker flags that set the version of the executable. The version is defined only in
# go.mod.
version_flags() {
	local kubernetes etcd major minor package
	kubernetes=$(cd "$source_dir" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
	etcd=$(cd "$source_dir" && go list -m -f '{{.Path}}@{{.Version}}' go.etcd.io/etcd/server/v3)
	IFS=. read -r major minor _ <<<"${kubernetes#v}"
	printf '%s' "-s -w"
	for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		printf ' -X %s=%s' \
			"$package.gitVersion" "$kubernetes" "$package.gitMajor" "$major" "$package.gitMinor" "$minor" \
			"$package.gitCommit" unknown "$package.gitTreeState" clean
	done
	# etcd knows its version; set its commit to the name of the module.
	printf ' -X %s=%s' go.etcd.io/etcd/api/v3/version.GitSHA "$etcd"
}

# input_hash covers the module files, the sources, this script (which contains the build's flags), the compiler and
# the platform.
input_hash() {
	cd "$source_dir"
	{
		go env GOVERSION GOOS GOARCH GOAMD64 GOARM64 GOEXPERIMENT
		version_flags
		sha256sum <"$repository/hack/controlplane.sh"
		sources_hash \( -name go.mod -o -name go.sum -o -name '*.go' \)
	} | hash_of_input
}

complete() { [[ -x $1/kubernetes && -L $1/kubectl ]]; }

# stale_packages counts the packages to compile. In the meantime, the go command reports the modules that it
# downloads, which are counted as well.
stale_packages() {
	local list=$temporary/stale fetched=0 line
	while IFS= read -r line; do
		case $line in
		'go: downloading '*)
			fetched=$((fetched + 1))
			progress "downloading modules: $fetched so far"
			;;
		*)
			end_progress
			printf '%s\n' "$line" >&2
			;;
		esac
	done < <(cd "$source_dir" && go list -deps -trimpath -tags "$tags" -f '{{if .Stale}}{{.ImportPath}}{{end}}' ./cmd/kubernetes \
		2>&1 >"$list" || echo "go list failed")
	grep -c . "$list" || true
}

# compile builds the executable and counts the packages that `go build -v` prints.
compile() {
	local total=$1 done=0 line status builder
	local log=$temporary/build.log pipe=$temporary/pipe
	mkfifo "$pipe"
	(cd "$source_dir" && exec go build -v -trimpath -tags "$tags" -ldflags "$(version_flags)" -o "$temporary/kubernetes" ./cmd/kubernetes) \
		>"$pipe" 2>&1 &
	builder=$!
	exec 8<"$pipe"
	while :; do
		status=0
		IFS= read -r -t "$tick" line <&8 || status=$?
		if ((status == 0)); then
			printf '%s\n' "$line" >>"$log"
			done=$((done + 1))
		elif ((status <= 128)); then
			break # end of the output; a status above 128 is a timeout of read
		fi
		if ((done >= total - 1)); then # the last package is main, which is mostly linking
			progress "linking"
		else
			progress "compiled $done of $total packages"
		fi
	done
	exec 8<&-
	end_progress
	if ! wait "$builder"; then
		log "the build failed; last lines of its output:"
		tail -n 40 "$log" >&2
		return 1
	fi
}

# make_links creates the links with the other names and starts the executable once: a build that does not run is not
# published.
make_links() {
	local program
	for program in "${programs[@]}"; do
		ln -s kubernetes "$1/$program"
	done
	log "$("$1/kube-apiserver" --version), $("$1/etcd" --version | head -n 1)"
}

build() {
	local total
	progress "determining the packages to compile"
	total=$(stale_packages)
	compile "$total"
	make_links "$1"
	rm -f "$temporary/build.log" "$temporary/pipe" "$temporary/stale"
}

cached "$(input_hash)" complete build
