#!/usr/bin/env bash
# Writes all files of a release page, from which Millwright is installed without Go and without a checkout.
#
#   hack/release.sh DIRECTORY VERSION IMAGE HYPERVISOR_IMAGE
#
# DIRECTORY/VERSION gets, and docs/contributing/release.md describes:
#   programs as archives and packages, with completion scripts and manual pages; the control plane and the guests of local clusters;
#   images as OCI layouts; the Helm chart; manifests; JSON schemas for editors; the provider's files for clusterctl; a manifest for krew;
#   bills of materials; a statement of provenance; SHA256SUMS
# VERSION and the images are those of hack/clusterctl.sh and hack/image.sh. The same sources, compiler and packages of
# the distribution result in the same files.
#
# Environment:
#   SIGNING_KEY        file with a private ECDSA key (PEM), with which SHA256SUMS is signed; default: no signature
#   RELEASE_URL        URL of the directory of all releases; default: GitHub's
#   RELEASE_PLATFORMS  platforms of the programs; default: "linux/amd64 linux/arm64 darwin/amd64 darwin/arm64".
#                      They must contain that of this machine
#   RELEASE_GUESTS     guests to include; default: "guest guest-full"
#   SOURCE_DATE_EPOCH  time of all files in seconds since 1970; default: time of the commit
set -euo pipefail

directory=${1:?output directory is required} given=${2:?version is required}
image=${3:?container image is required} hypervisor_image=${4:?image of hypervisors is required}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
project=https://github.com/millwright-dev/millwright
url=${RELEASE_URL:-$project/releases/download}
read -ra platforms <<<"${RELEASE_PLATFORMS-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}"
read -ra guests <<<"${RELEASE_GUESTS-guest guest-full}"

log() { echo "release: $*" >&2; }

fail() {
	log "$@"
	exit 1
}

version=$("$repository/hack/version.sh" "$given")
number=${version#v}
commit=$(git -C "$repository" describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null) || commit=unknown
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$repository" log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
if [[ -n ${SIGNING_KEY:-} ]]; then
	openssl pkey -in "$SIGNING_KEY" -noout || fail "SIGNING_KEY: $SIGNING_KEY is not a private key; create one with: openssl ecparam -genkey -name prime256v1 -noout -out $SIGNING_KEY"
fi

mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
scratch=$(mktemp -d "$directory/.release.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
page=$scratch/page
mkdir "$page"

# pack writes an archive of files below a directory: pack FILE DIRECTORY [NAME...].
pack() {
	local file=$1 from=$2
	shift 2
	tar --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r,go-w --mtime="@$SOURCE_DATE_EPOCH" \
		-C "$from" -cf - "${@:-.}" | gzip -n >"$page/$file"
}

# bill moves a bill of materials, or all of a directory, to the page: bill DIRECTORY PREFIX.
bill() {
	local file platform
	for file in "$1"/*.cdx.json; do
		platform=$(basename "$file" .cdx.json)
		mv "$file" "$page/$2_${number}_${platform//-/_}.cdx.json"
	done
}

sums=
local_archives() {
	local name dir file
	for name in controlplane "${guests[@]}"; do
		log "packing the archive of $name"
		dir=$("$repository/hack/$name.sh")
		file=millwright-${name}_${number}_linux_amd64.tar.gz
		pack "$file" "$dir"
		sums+=${sums:+,}$name=$(sha256sum <"$page/$file" | cut -d' ' -f1)
		if [[ $name == controlplane ]]; then
			go -C "$repository/hack/image" run . --reference "controlplane:$version" --sbom "$scratch/sbom-$name" "linux/amd64=$dir/kubernetes"
			bill "$scratch/sbom-$name" "millwright-$name"
		fi
	done
}

# programs builds the program for each platform, which knows the checksums of the archives.
programs() {
	local files=$scratch/files platform name
	mkdir "$scratch/programs"
	MILLWRIGHT_ARCHIVES=$sums "$repository/hack/programs.sh" "$scratch/programs" "$version" "${platforms[@]}" >"$scratch/built"
	mapfile -t built <"$scratch/built"
	go -C "$repository/hack/image" run . --reference "$image:$version" --sbom "$scratch/sbom" "${built[@]}"
	bill "$scratch/sbom" millwright
	mkdir -p "$files/completions"
	for name in bash zsh fish; do
		"$scratch/programs/linux-$(go env GOHOSTARCH)" completion "$name" >"$files/completions/millwright.$name"
	done
	go -C "$repository" run ./hack/clireference -man "$files/man"
	cp "$repository"/{LICENSE,README.md,CHANGELOG.md} "$files/"
	ln -s millwright "$files/kubectl-millwright"
	for platform in "${platforms[@]}"; do
		log "packing the program for $platform"
		cp "$scratch/programs/${platform//\//-}" "$files/millwright"
		pack "millwright_${number}_${platform//\//_}.tar.gz" "$files"
		if [[ $platform == linux/* ]]; then packages "${platform#*/}" "$files"; fi
	done
}

# packages writes the Debian and RPM packages: packages ARCHITECTURE FILES.
packages() {
	local packager
	for packager in deb rpm; do
		ARCHITECTURE=$1 VERSION=$version FILES=$2 go -C "$repository" tool -modfile="$repository/tools/go.mod" nfpm package \
			--config "$repository/hack/nfpm.yaml" --packager "$packager" --target "$page/millwright_${number}_$1.$packager" >&2
	done
}

images() {
	local kind platform linux=()
	for platform in "${platforms[@]}"; do
		if [[ $platform == linux/* ]]; then linux+=("$platform"); fi
	done
	for kind in image hypervisor-image; do
		log "building the $kind"
		if [[ $kind == image ]]; then
			MILLWRIGHT_ARCHIVES=$sums "$repository/hack/image.sh" "$scratch/$kind" "$version" "$image" "${linux[@]}" >&2
		else
			MILLWRIGHT_ARCHIVES=$sums "$repository/hack/image.sh" --hypervisor "$scratch/$kind" "$version" "$hypervisor_image" >&2
			bill "$scratch/$kind.sbom" millwright-hypervisor
		fi
		pack "millwright-${kind}_$number.oci.tar.gz" "$scratch/$kind"
	done
}

manifests() {
	local chart=$scratch/chart/millwright
	mkdir -p "$scratch/chart"
	cp -r "$repository/charts/millwright" "$chart"
	sed -i "s/^version: .*/version: $number/; s/^appVersion: .*/appVersion: $version/" "$chart/Chart.yaml"
	pack "millwright-chart_$number.tgz" "$scratch/chart" millwright
	pack "millwright-manifests_$number.tar.gz" "$repository" config examples/README.md \
		$(cd "$repository" && git ls-files 'examples/*.yaml' 2>/dev/null || find examples -name '*.yaml')
	pack "millwright-schemas_$number.tar.gz" "$repository/config/schemas"
	"$repository/hack/clusterctl.sh" "$scratch/clusterctl" "$version" "$image" >&2
	cp "$scratch/clusterctl/v1beta2/infrastructure-millwright/$version"/* "$page/"
	pack "millwright-clusterctl-v1beta1_$number.tar.gz" "$scratch/clusterctl" "v1beta1/infrastructure-millwright"
}

# krew writes the manifest of the plug-in for kubectl.
krew() {
	local platform file
	{
		cat <<-END
			apiVersion: krew.googlecontainertools.github.com/v1alpha2
			kind: Plugin
			metadata: {name: millwright}
			spec:
			  version: $version
			  homepage: $project
			  shortDescription: Explain and operate machines
			  description: |
			    Explains why machines do not become nodes or are not deleted, follows rollouts,
			    and opens consoles of virtual machines of Millwright.
			  platforms:
		END
		for platform in "${platforms[@]}"; do
			file=millwright_${number}_${platform//\//_}.tar.gz
			cat <<-END
				  - selector: {matchLabels: {os: ${platform%/*}, arch: ${platform#*/}}}
				    uri: $url/$version/$file
				    sha256: $(sha256sum <"$page/$file" | cut -d' ' -f1)
				    files: [{from: ./millwright, to: .}, {from: ./LICENSE, to: .}]
				    bin: millwright
			END
		done
	} >"$page/millwright.krew.yaml"
}

# provenance writes what was built from what, as a statement of in-toto with SLSA's predicate.
provenance() {
	(cd "$page" && sha256sum ./*) | awk -v version="$version" -v commit="$commit" -v project="$project" -v go="$(go env GOVERSION)" '
		BEGIN {
			printf "{\n  \"_type\": \"https://in-toto.io/Statement/v1\",\n  \"subject\": ["
		}
		{
			sub(/^\.\//, "", $2)
			printf "%s\n    {\"name\": \"%s\", \"digest\": {\"sha256\": \"%s\"}}", (NR > 1 ? "," : ""), $2, $1
		}
		END {
			printf "\n  ],\n  \"predicateType\": \"https://slsa.dev/provenance/v1\",\n  \"predicate\": {\n"
			printf "    \"buildDefinition\": {\n      \"buildType\": \"%s/blob/main/docs/contributing/release.md\",\n", project
			printf "      \"externalParameters\": {\"version\": \"%s\"},\n", version
			printf "      \"resolvedDependencies\": [\n        {\"uri\": \"git+%s\", \"digest\": {\"gitCommit\": \"%s\"}},\n", project, commit
			printf "        {\"uri\": \"https://go.dev/dl\", \"annotations\": {\"version\": \"%s\"}}\n      ]\n    },\n", go
			printf "    \"runDetails\": {\"builder\": {\"id\": \"%s/blob/main/hack/release.sh\"}}\n  }\n}\n", project
		}' >"$scratch/provenance"
	mv "$scratch/provenance" "$page/millwright_${number}_provenance.intoto.json"
}

checksums() {
	(cd "$page" && sha256sum -- *) >"$scratch/sums"
	mv "$scratch/sums" "$page/SHA256SUMS"
	if [[ -n ${SIGNING_KEY:-} ]]; then
		openssl dgst -sha256 -sign "$SIGNING_KEY" "$page/SHA256SUMS" | base64 -w0 >"$page/SHA256SUMS.sig"
		openssl pkey -in "$SIGNING_KEY" -pubout -out "$page/millwright.pub"
	else
		log "SIGNING_KEY is not set; the release is not signed"
	fi
}

local_archives
programs
images
manifests
krew
provenance
checksums
rm -rf "${directory:?}/$version"
mv "$page" "$directory/$version"
echo "$directory/$version"
