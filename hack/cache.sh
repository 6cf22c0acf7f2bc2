# Keeps results of slow builds in folders CACHE/KIND/HASH, where HASH covers everything
# that a result depends on. To be sourced by the script that builds one kind of result:
#
#   kind=guest
#   source "${BASH_SOURCE[0]%/*}/cache.sh"
#   complete() { [[ -f $1/initrd ]]; }    # whether the folder $1 holds a whole result
#   build() { cp initrd "$1/"; }          # makes the result in the folder $1
#   cached "$hash" complete build         # prints the folder; progress goes to stderr
#
# The link CACHE/KIND/current points to the folder of the newest call; tests and local
# mode look there. The result that was used last before it stays too, so that two
# checkouts with different inputs can work beside each other.
#
# CACHE is MILLWRIGHT_CACHE; default ${XDG_CACHE_HOME:-$HOME/.cache}/millwright.

cache=${MILLWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/millwright}/$kind
temporary=

# The result must not depend on the caller's settings: flags of other builds
# (GOFLAGS=-race, -mod=mod, …) or a workspace would end up in what is built.
export CGO_ENABLED=0 GOWORK=off GOFLAGS=-buildvcs=false LC_ALL=C

say() { printf '%s\n' "$kind: $*" >&2; }

fail() {
	say "$@"
	exit 1
}

elapsed() { printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }

# sources_hash prints one line for each file below the current folder that matches the
# patterns of find given.
sources_hash() { find . -type f "$@" -print0 | sort -z | xargs -0 sha256sum; }

# hash_of_input makes of standard input, and of what stands here, what names a result's
# folder.
hash_of_input() { cat - "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16; }

command -v go >/dev/null || fail "the go command is not in PATH"

clean_up() {
	if [[ -n $temporary ]]; then rm -rf "$temporary"; fi
}

# cached prints the folder of the result HASH, after building it if it is not there.
cached() {
	local folder=$cache/$1 complete=$2 build=$3
	mkdir -p "$cache"
	exec 9>"$cache/.lock"
	if ! flock -n 9; then
		say "waiting for another build that holds $cache/.lock"
		flock 9
	fi
	if "$complete" "$folder"; then
		say "up to date"
	else
		trap clean_up EXIT
		rm -rf "$cache"/.build.*
		temporary=$(mktemp -d "$cache/.build.XXXXXX")
		"$build" "$temporary" 9>&-
		"$complete" "$temporary" || fail "the build left something out"
		# Put in place in one step, so that nobody ever sees half of it.
		chmod 755 "$temporary"
		rm -rf "$folder"
		mv -T "$temporary" "$folder"
		temporary=
		say "built ($(elapsed))"
	fi
	ln -sfn "$(basename "$folder")" "$cache/.current.$$"
	mv -fT "$cache/.current.$$" "$cache/current"
	touch "$folder"
	remove_old "$folder"
	printf '%s\n' "$folder"
}

remove_old() {
	local keep=$1 folder kept=0
	while IFS= read -r folder; do
		[[ $folder == "$keep" ]] && continue
		kept=$((kept + 1))
		if ((kept > 1)); then
			say "removing the old ${folder##*/}"
			rm -rf "$folder"
		fi
	done < <(find "$cache" -mindepth 1 -maxdepth 1 -type d -name '[0-9a-f]*' -printf '%T@ %p\n' | sort -rn | cut -d' ' -f2-)
}
