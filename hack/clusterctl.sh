#!/usr/bin/env bash
# Writes the files from which clusterctl installs Millwright as an infrastructure provider.
#
#   hack/clusterctl.sh DIRECTORY VERSION IMAGE [PLATFORM...]
#
# DIRECTORY gets a repository for each contract of Cluster API:
#   v1beta1/  for clusterctl before v1.11
#   v1beta2/  for clusterctl v1.11 and later
# Each contains infrastructure-millwright/VERSION/ with the files, and a clusterctl.yaml that names them. VERSION
# has the form v0.1.0. Any other value that identifies the sources, such as a commit, becomes a pre-release version
# of the next release. IMAGE is the repository of the program's container image, without a tag: the tag is the
# version. For each PLATFORM, such as linux/arm64, sbom/VERSION/ gets a software bill of materials of the program,
# in CycloneDX format, which is the same as that of hack/image.sh.
#
# Environment:
#   KUBECTL  program that assembles the manifests; defaults to that of hack/controlplane.sh
set -euo pipefail

directory=${1:?output directory is required} version=${2:?version is required} image=${3:?container image is required}
platforms=("${@:4}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
sources=$repository/config/clusterctl
provider=infrastructure-millwright
contracts=(v1beta1 v1beta2)

fail() {
	echo "clusterctl: $*" >&2
	exit 1
}

# series prints major, minor and contract of each release series in a metadata.yaml.
series() {
	awk '$1 == "-" { major = $3 } $1 == "minor:" { minor = $2 } $1 == "contract:" { print major, minor, $2 }' "$1"
}

version=$("$repository/hack/version.sh" "$version")
[[ ${image##*/} != *[:@]* ]] || fail "image $image must not have a tag or a digest; its tag is the version"
IFS=. read -r major minor _ <<<"${version#v}"

kubectl=${KUBECTL:-$("$repository/hack/controlplane.sh")/kubectl}
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
scratch=$(mktemp -d "$directory/.clusterctl.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

for contract in "${contracts[@]}"; do
	series "$sources/$contract/metadata.yaml" | grep -qxF "$major $minor $contract" ||
		fail "config/clusterctl/$contract/metadata.yaml does not contain the series $major.$minor of $version"
	out=$scratch/$contract/$provider/$version
	mkdir -p "$out"
	# Kustomize does not accept absolute paths.
	cat >"$scratch/kustomization.yaml" <<-END
		resources:
		- $(realpath --relative-to="$scratch" "$sources/$contract")
		images:
		- {name: millwright, newName: "$image", newTag: "$version"}
	END
	"$kubectl" kustomize --load-restrictor=LoadRestrictionsNone "$scratch" >"$out/infrastructure-components.yaml"
	cp "$sources/$contract"/{metadata,cluster-template,cluster-template-*,clusterclass-*}.yaml "$out/"
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

# Other existing versions are kept.
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
