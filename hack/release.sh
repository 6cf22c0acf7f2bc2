#!/usr/bin/env bash
# Writes the files by which clusterctl installs Millwright as an infrastructure provider.
#
#   hack/release.sh DIRECTORY VERSION IMAGE [PLATFORM...]
#
# DIRECTORY gets a repository for each contract of Cluster API:
#   v1beta1/  for clusterctl before v1.11
#   v1beta2/  for clusterctl v1.11 and later
# Each has infrastructure-millwright/VERSION/ with the files, and a clusterctl.yaml that
# names them. VERSION is like v0.1.0; anything else that says what the files were made from,
# as a commit, makes them an earlier version of the release to come. IMAGE is where the
# program's container image is, without a tag: that is the version. For each PLATFORM, such as
# linux/arm64, sbom/VERSION/ gets a software bill of materials of the program, in the format
# CycloneDX: the same as hack/image.sh writes beside the image.
#
# Environment:
#   KUBECTL  program to assemble manifests with; that of hack/controlplane.sh
set -euo pipefail

directory=${1:?which folder to write to} version=${2:?which version} image=${3:?which container image}
platforms=("${@:4}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
sources=$repository/config/clusterctl
provider=infrastructure-millwright
contracts=(v1beta1 v1beta2)

fail() {
	echo "release: $*" >&2
	exit 1
}

# series prints major, minor and contract of each series that a metadata.yaml lists.
series() {
	awk '$1 == "-" { major = $3 } $1 == "minor:" { minor = $2 } $1 == "contract:" { print major, minor, $2 }' "$1"
}

version=$("$repository/hack/version.sh" "$version")
[[ ${image##*/} != *[:@]* ]] || fail "the image $image has a tag or a digest; its tag is to be the version"
IFS=. read -r major minor _ <<<"${version#v}"

kubectl=${KUBECTL:-$("$repository/hack/controlplane.sh")/kubectl}
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
scratch=$(mktemp -d "$directory/.release.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

for contract in "${contracts[@]}"; do
	series "$sources/$contract/metadata.yaml" | grep -qxF "$major $minor $contract" ||
		fail "config/clusterctl/$contract/metadata.yaml has no series $major.$minor, which $version belongs to"
	out=$scratch/$contract/$provider/$version
	mkdir -p "$out"
	# Kustomize takes no absolute paths.
	cat >"$scratch/kustomization.yaml" <<-END
		resources:
		- $(realpath --relative-to="$scratch" "$sources/$contract")
		images:
		- {name: millwright, newName: "$image", newTag: "$version"}
	END
	"$kubectl" kustomize --load-restrictor=LoadRestrictionsNone "$scratch" >"$out/infrastructure-components.yaml"
	cp "$sources/$contract"/{metadata,cluster-template,cluster-template-*}.yaml "$out/"
	cat >"$scratch/$contract/clusterctl.yaml" <<-END
		providers:
		- name: ${provider#infrastructure-}
		  type: InfrastructureProvider
		  url: file://$directory/$contract/$provider/$version/infrastructure-components.yaml
	END
done

if ((${#platforms[@]})); then
	mkdir "$scratch/programs"
	built=$("$repository/hack/programs.sh" "$scratch/programs" "$version" "${platforms[@]}")
	mapfile -t programs <<<"$built"
	go -C "$repository/hack/image" run . --reference "$image:$version" --sbom "$scratch/sbom" "${programs[@]}"
fi

# Other versions that are there already stay.
if [[ -d $scratch/sbom ]]; then
	mkdir -p "$directory/sbom"
	rm -rf "${directory:?}/sbom/$version"
	mv "$scratch/sbom" "$directory/sbom/$version"
	echo "$directory/sbom/$version"
fi
for contract in "${contracts[@]}"; do
	mkdir -p "$directory/$contract/$provider"
	rm -rf "${directory:?}/$contract/$provider/$version"
	mv "$scratch/$contract/$provider/$version" "$directory/$contract/$provider/"
	mv "$scratch/$contract/clusterctl.yaml" "$directory/$contract/"
	echo "$directory/$contract/$provider/$version"
done
