#!/usr/bin/env bash
# Prints the version of a release.
#
#   hack/version.sh GIVEN
#
# This is GIVEN if it has the form v0.1.0. Any other value that identifies the sources of the release, such as a
# commit, becomes a pre-release version of the next release.
set -euo pipefail

given=${1:?which version}
metadata=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/config/clusterctl/v1beta2/metadata.yaml

part='(0|[1-9][0-9]*)'
word='[0-9A-Za-z-]+'
if [[ $given =~ ^v$part\.$part\.$part(-$word(\.$word)*)?$ ]]; then
	echo "$given"
	exit
fi
# The latest series is the first.
next=$(awk '$1 == "-" { major = $3 } $1 == "minor:" { print "v" major "." $2 ".0"; exit }' "$metadata")
version=$next-dev-${given//[^0-9A-Za-z-]/-}
echo "version: $given does not have the form v0.1.0; using $version" >&2
echo "$version"
