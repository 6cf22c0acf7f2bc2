#!/usr/bin/env bash
# The tree must stand alone: it names no folder or server of the machine that it was
# written on, nothing outside the repository, and it speaks of the project, not of
# the work on it. Only text that people of this project write is searched for words;
# paths are searched for everywhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
echo 'standalone'
failed=0

refuse() { # WHY, then the arguments of git grep
    local why=$1 found=0
    shift
    git grep --untracked --line-number -I "$@" || found=$?
    case $found in
    0)
        echo "standalone: $why" >&2
        failed=1
        ;;
    1) ;; # nothing found
    *) exit "$found" ;;
    esac
}

# Folders of this machine: that of the checkout, the one above it, the home folder.
here=$(pwd)
for folder in "$here" "$(dirname "$here")" "$HOME"; do
    case "$folder" in
    / | /tmp | /var/tmp | /home | /opt | /src | /usr/src) continue ;; # in ordinary text too
    esac
    refuse "names a folder of this machine" -E "(^|[^[:alnum:]_.~/-])${folder//./\\.}/" -- .
done
# Folders beside the checkout, named by a relative path; not those of a name that the
# checkout has too, since ../config then may well be its own.
for folder in "$(dirname "$here")"/*/; do
    name=$(basename "$folder")
    if [[ -z "$(git ls-files --cached --others -- "$name/*" "*/$name/*" | head -n 1)" ]]; then
        refuse 'names a folder beside the checkout' -w -F "../$name" -- .
    fi
done

# Servers that Go modules come from here, other than the public ones.
proxies=$(go env GOPROXY GONOSUMDB GOSUMDB | grep -oE '[[:alnum:]-]+(\.[[:alnum:]-]+)+' |
    grep -vxE 'proxy\.golang\.org|sum\.golang\.org' || true)
for proxy in $proxies; do
    refuse 'names the server that modules come from here' -F "$proxy" -- .
done

# Words about the work on the project. Fixtures and generated files quote others, and MCM has a package of one
# of these names. The brackets keep the pattern from finding itself.
work='[i]ssues? #?[0-9]+|(the|this|these|open|other) issues?|(this|these|earlier|later|next|previous) sessions?|(?<!/)(?<!ackage )helper[s](?!\.\w)|A[I]'
refuse 'speaks of the work on the project instead of the project' -w -P "$work" -- . \
    ':!*/testdata/*' ':!config/crd' ':!*zz_generated*' ':!*.pb.go' ':!client/*/*' ':!*go.mod' ':!*go.sum' ':!LICENSE'

# Linters are obeyed (docs/design/0002-linters.md).
refuse 'silences a linter' -E '//[n]olint' -- '*.go'

exit "$failed"
