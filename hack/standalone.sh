#!/usr/bin/env bash
# Checks that the tree stands alone: it must not name directories or servers of the machine that it was
# written on, or anything outside the repository, and it must describe the project, not the work on it.
# Only this project's own text is searched for words; paths are searched for everywhere.
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

# Directories of this machine: the checkout, its parent, and the home directory.
here=$(pwd)
for dir in "$here" "$(dirname "$here")" "$HOME"; do
    case "$dir" in
    / | /tmp | /var/tmp | /home | /opt | /src | /usr/src) continue ;; # also occurs in ordinary text
    esac
    refuse "names a directory of this machine" -E "(^|[^[:alnum:]_.~/-])${dir//./\\.}/" -- .
done
# Directories next to the checkout, named by a relative path, except for names that the checkout also has,
# since ../config may then be its own.
for dir in "$(dirname "$here")"/*/; do
    name=$(basename "$dir")
    if [[ -z "$(git ls-files --cached --others -- "$name/*" "*/$name/*" | head -n 1)" ]]; then
        refuse 'names a directory next to the checkout' -w -F "../$name" -- .
    fi
done

# Module proxies of this machine, other than the public ones.
proxies=$(go env GOPROXY GONOSUMDB GOSUMDB | grep -oE '[[:alnum:]-]+(\.[[:alnum:]-]+)+' |
    grep -vxE 'proxy\.golang\.org|sum\.golang\.org' || true)
for proxy in $proxies; do
    refuse 'names a module proxy of this machine' -F "$proxy" -- .
done

# Words about the work on the project. Fixtures and generated files quote others, and MCM has a package with one
# of these names. The brackets prevent the pattern from matching itself.
work='[i]ssues? #?[0-9]+|(the|this|these|open|other) issues?|(this|these|earlier|later|next|previous) sessions?|(?<!/)(?<!ackage )helper[s](?!\.\w)|A[I]'
refuse 'describes the work on the project instead of the project' -w -P "$work" -- . \
    ':!*/testdata/*' ':!config/crd' ':!*zz_generated*' ':!*.pb.go' ':!client/*/*' ':!*go.mod' ':!*go.sum' ':!LICENSE' ':!ui/vendor' ':!internal/ui/web'

# Findings of linters are fixed, not silenced (docs/design/0002-linters.md).
refuse 'silences a linter' -E '//[n]olint' -- '*.go'

exit "$failed"
