#!/usr/bin/env bash
# Checks the subjects of the latest commits: at most 72 characters, in the form of CONTRIBUTING.md. Without history,
# as in an archive, it checks nothing.
#   subjects.sh [NUMBER OF COMMITS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

echo 'commit subjects'
git rev-parse --quiet --verify HEAD >/dev/null 2>&1 || exit 0
git log --no-merges --max-count="${1:-100}" --format='%h %s' | awk '
    {
        hash = $1; subject = substr($0, length(hash) + 2)
        if (length(subject) > 72) { print hash ": longer than 72 characters: " subject; bad = 1 }
        if (subject !~ /^[a-z]+(\([a-z0-9,./-]+\))?!?: ./) { print hash ": not TYPE(SCOPE): TEXT: " subject; bad = 1 }
    }
    END { exit bad }' >&2
