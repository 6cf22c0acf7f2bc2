#!/usr/bin/env bash
# Builds the programs of one version of Cluster API from test/suites/capi/VERSION in a cache directory and prints
# that directory on stdout; progress goes to stderr.
#
#   hack/capi.sh v1.14.2
#
# The directory (see hack/cache.sh) contains:
#   core        the core manager
#   clusterctl  the command, if the module names it as a tool
#   crd/        the CRDs of that version, and those in which clusterctl keeps its records
#   webhook/    the registration of its webhooks
#   rbac/       the roles of its manager
#   bootstrap/, controlplane/
#               the same for Cluster API's providers for kubeadm, whose program is called
#               manager, if the module names them as tools
set -euo pipefail

version=${1:?which version of Cluster API; see test/suites/capi}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
module=$repository/test/suites/capi/$version
[[ -f $module/go.mod ]] || { echo "$module/go.mod does not exist" >&2; exit 1; }
kind=capi-$version
# shellcheck source=hack/cache.sh
source "$repository/hack/cache.sh"

input_hash() {
	cd "$module"
	{
		go env GOVERSION GOOS GOARCH GOAMD64 GOARM64 GOEXPERIMENT
		cat go.mod go.sum "$repository/hack/capi.sh"
	} | hash_of_input
}

complete() { [[ -x $1/core && -d $1/crd && -d $1/webhook && -d $1/rbac ]]; }

# version_flags prints the linker flags that set the version of the programs.
version_flags() {
	local major minor
	IFS=. read -r major minor _ <<<"${version#v}"
	printf '%s' "-s -w"
	printf ' -X sigs.k8s.io/cluster-api/version.%s' \
		"gitVersion=$version" "gitMajor=$major" "gitMinor=$minor" gitCommit=unknown gitTreeState=clean
}

# copy_config copies the kinds, webhooks and roles of a manager from its directory config. The labels of the kinds,
# from which the core determines the version to read, are in their kustomization.
copy_config() {
	local part labels crd
	for part in crd/bases webhook rbac; do
		cp -r --no-preserve=mode "$1/$part" "$2/${part%/*}"
	done
	labels=$(sed -nE 's|^ +(cluster\.x-k8s\.io/v[0-9a-z]+: [0-9a-z_]+)$|    \1|p' "$1/crd/kustomization.yaml")
	[[ $labels ]] || return 0
	for crd in "$2"/crd/*.yaml; do
		awk -v labels="$labels" '{ print } /^metadata:$/ && !done { print "  labels:"; print labels; done = 1 }' "$crd" >"$crd.labelled"
		mv "$crd.labelled" "$crd"
	done
}

build() {
	local tool source config name
	# Without this, a module that has never been downloaded has no directory.
	go -C "$module" mod download sigs.k8s.io/cluster-api
	source=$(go -C "$module" list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api)
	log "compiling $version"
	while read -r tool; do
		case $tool in
		*/clusterctl) name=clusterctl ;;
		*/bootstrap/kubeadm) name=bootstrap/manager ;;
		*/controlplane/kubeadm) name=controlplane/manager ;;
		*) name=core ;;
		esac
		go -C "$module" build -trimpath -ldflags "$(version_flags)" -o "$1/$name" "$tool"
		if [[ $name == */manager ]]; then copy_config "$source/${name%/*}/kubeadm/config" "$1/${name%/*}"; fi
	done < <(go -C "$module" list -f '{{.ImportPath}}' tool)
	config=$source/config
	if [[ -d $source/core/config ]]; then config=$source/core/config; fi
	copy_config "$config" "$1"
	cp --no-preserve=mode "$source"/cmd/clusterctl/config/crd/bases/*.yaml "$1/crd/"
}

cached "$(input_hash)" complete build
