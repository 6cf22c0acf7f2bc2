#!/usr/bin/env bash
# Prints the version of a release.
#
#   hack/version.sh GIVEN
#
# That is GIVEN, if it is like v0.1.0. Anything else that says what the release is made
# from, as a commit, becomes an earlier version of the release to come.
set -euo pipefail

given=${1:?which version}
metadata=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/config/clusterctl/v1beta2/metadata.yaml

part='(0|[1-9][0-9]*)'
word='[0-9A-Za-z-]+'
if [[ $given =~ ^v$part\.$part\.$part(-$word(\.$word)*)?$ ]]; then
	echo "$given"
	exit
fi
# The newest series is the first.
next=$(awk '$1 == "-" { major = $3 } $1 == "minor:" { print "v" major "." $2 ".0"; exit }' "$metadata")
version=$next-dev-${given//[^0-9A-Za-z-]/-}
echo "version: $given is not a version like v0.1.0, so this is $version" >&2
echo "$version"
