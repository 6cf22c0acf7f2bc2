#!/usr/bin/env bash
# Makes the Go modules of this project require each other in the version to be released. In a checkout, replace
# directives override these versions, but programs that import a module do not use them.
#
#   hack/modules.sh VERSION [DIRECTORY]
#
# VERSION has the form v0.1.0. DIRECTORY contains the modules; the default is the checkout. The go.mod files are
# rewritten, and the tags that publish the modules are printed, in order.
set -euo pipefail

version=${1:?which version}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
directory=${2:-$repository}
module=github.com/millwright-dev/millwright
published=(api client . compat/mcm)

if [[ $version != v* || $("$repository/hack/version.sh" "$version" 2>/dev/null) != "$version" ]]; then
	echo "modules: invalid version $version; use the form v0.1.0" >&2
	exit 2
fi

cd "$directory"
find . -name go.mod -not -path './.*' -print0 |
	xargs -0r sed -Ei "s#^((require)?[[:space:]]+$module(/[^[:space:]]+)? )v[^[:space:]]+#\\1$version#"

for path in "${published[@]}"; do
	tag=$path/$version
	echo "git tag ${tag#./}"
done
