# Keeps results of slow builds in directories CACHE/KIND/HASH, where HASH covers everything that a result depends
# on. Source it from the script that builds one kind of result:
#
#   kind=guest
#   source "${BASH_SOURCE[0]%/*}/cache.sh"
#   complete() { [[ -f $1/initrd ]]; }    # whether the directory $1 contains a complete result
#   build() { cp initrd "$1/"; }          # builds the result in the directory $1
#   cached "$hash" complete build         # prints the directory; progress goes to stderr
#
# The link CACHE/KIND/current points to the directory of the latest call; tests and local mode use it. The
# previously used result is also kept, so that two checkouts with different inputs can be used in turns.
#
# CACHE is MILLWRIGHT_CACHE; default ${XDG_CACHE_HOME:-$HOME/.cache}/millwright.

cache=${MILLWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/millwright}/$kind
temporary=

# The result must not depend on the caller's settings: flags of other builds (GOFLAGS=-race, -mod=mod, …) or a
# workspace would affect the build.
export CGO_ENABLED=0 GOWORK=off GOFLAGS=-buildvcs=false LC_ALL=C

log() { printf '%s\n' "$kind: $*" >&2; }

fail() {
	log "$@"
	exit 1
}

elapsed() { printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }

# sources_hash prints one line for each file below the current directory that matches the given arguments of find.
sources_hash() { find . -type f "$@" -print0 | sort -z | xargs -0 sha256sum; }

# hash_of_input prints the hash of standard input and of this script, which becomes the name of a result's
# directory.
hash_of_input() { cat - "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16; }

command -v go >/dev/null || fail "cannot find the go command in PATH"

clean_up() {
	if [[ -n $temporary ]]; then rm -rf "$temporary"; fi
}

# cached prints the directory of the result HASH, and builds it if it does not exist.
cached() {
	local dir=$cache/$1 complete=$2 build=$3
	mkdir -p "$cache"
	exec 9>"$cache/.lock"
	if ! flock -n 9; then
		log "waiting for another build that holds $cache/.lock"
		flock 9
	fi
	if "$complete" "$dir"; then
		log "up to date"
	else
		trap clean_up EXIT
		rm -rf "$cache"/.build.*
		temporary=$(mktemp -d "$cache/.build.XXXXXX")
		"$build" "$temporary" 9>&-
		"$complete" "$temporary" || fail "the build is incomplete"
		# Move it into place in one step, so that an incomplete result is never visible.
		chmod 755 "$temporary"
		rm -rf "$dir"
		mv -T "$temporary" "$dir"
		temporary=
		log "built ($(elapsed))"
	fi
	ln -sfn "$(basename "$dir")" "$cache/.current.$$"
	mv -fT "$cache/.current.$$" "$cache/current"
	touch "$dir"
	remove_old "$dir"
	printf '%s\n' "$dir"
}

remove_old() {
	local keep=$1 dir kept=0
	while IFS= read -r dir; do
		[[ $dir == "$keep" ]] && continue
		kept=$((kept + 1))
		if ((kept > 1)); then
			log "removing the old ${dir##*/}"
			rm -rf "$dir"
		fi
	done < <(find "$cache" -mindepth 1 -maxdepth 1 -type d -name '[0-9a-f]*' -printf '%T@ %p\n' | sort -rn | cut -d' ' -f2-)
}
