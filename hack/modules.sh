#!/usr/bin/env bash
# Has our Go modules require each other in the version that is released. In a checkout a replace takes
# their place, which who imports a module does not see.
#
#   hack/modules.sh VERSION [DIRECTORY]
#
# VERSION is like v0.1.0. DIRECTORY has the modules, and is by default the checkout. The files go.mod are
# rewritten, and the tags that publish the modules are printed, in their order.
set -euo pipefail

version=${1:?which version}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
directory=${2:-$repository}
module=github.com/millwright-dev/millwright
published=(api client . compat/mcm)

if [[ $version != v* || $("$repository/hack/version.sh" "$version" 2>/dev/null) != "$version" ]]; then
	echo "modules: $version is not a version like v0.1.0" >&2
	exit 2
fi

cd "$directory"
find . -name go.mod -not -path './.*' -print0 |
	xargs -0r sed -Ei "s#^((require)?[[:space:]]+$module(/[^[:space:]]+)? )v[^[:space:]]+#\\1$version#"

for path in "${published[@]}"; do
	tag=$path/$version
	echo "git tag ${tag#./}"
done
