#!/usr/bin/env bash
# Measures what guests of "millwright up" cost: the time from "kubectl apply" until all their nodes are Ready, and
# the memory of their processes (PSS, which counts shared pages in parts). With SECONDS also what one Pod of a hypervisor
# uses in addition to its guest: its memory, and the processor time of that many idle seconds.
#
#   hack/bench-guests.sh small|full NUMBER [SECONDS]
#
# It uses its own ports, not those of the examples, which another "up" may use.
set -euo pipefail

guest=$1 number=$2 seconds=${3:-}
root=$(cd "$(dirname "$0")/.." && pwd)
case $guest in
small) pool=$root/examples/pool.yaml ;;
full) pool=$root/examples/full/pool.yaml ;;
*) echo "bench-guests: unknown guest $guest; expected small or full" >&2 && exit 2 ;;
esac
dir=$(mktemp -d)
api=26443 images=26480
up=

finish() {
	if [[ -n $up ]]; then
		kill "$up" 2>/dev/null || true # it may have exited
		wait "$up" || true
		"$root/bin/millwright" down --dir "$dir/up" >/dev/null
	fi
	rm -rf "$dir"
}
trap finish EXIT

# pss prints the total memory of processes, in MiB.
pss() {
	local pid files=()
	for pid in "$@"; do files+=("/proc/$pid/smaps_rollup"); done
	awk '/^Pss:/ { sum += $2 } END { printf "%d", sum / 1024 }' "${files[@]}"
}

# overhead prints the memory of QEMU processes without that of their guests, which is the mapping of that size, in MiB.
overhead() {
	local pid size
	for pid in "$@"; do
		size=$(tr '\0' '\n' <"/proc/$pid/cmdline" | grep -A1 -x -e -m | tail -1)
		awk -v size=$((${size%M} * 1024)) '/^Size:/ { guest = $2 == size; found += guest } /^Pss:/ && !guest { sum += $2 }
			END { if (found != 1) exit 1; print sum }' "/proc/$pid/smaps" || { echo "bench-guests: cannot find the memory of the guest of QEMU process $pid" >&2 && return 1; }
	done | awk '{ sum += $1 } END { printf "%d", sum / 1024 }'
}

# translated prints the memory of QEMU processes for translated code of their guests, in MiB. It is zero with KVM.
translated() {
	local pid files=()
	for pid in "$@"; do files+=("/proc/$pid/smaps"); done
	awk '/^[0-9a-f]+-[0-9a-f]+ / { code = $2 == "rwxp" } /^Pss:/ && code { sum += $2 } END { printf "%d", sum / 1024 }' "${files[@]}"
}

# ticks prints the processor time of processes so far, in clock ticks.
ticks() {
	local pid files=()
	for pid in "$@"; do files+=("/proc/$pid/stat"); done
	awk '{ sum += $14 + $15 } END { printf "%d", sum }' "${files[@]}"
}

# resident prints the resident memory of processes, in MiB.
resident() {
	local pid files=()
	for pid in "$@"; do files+=("/proc/$pid/status"); done
	awk '/^VmRSS:/ { sum += $2 } END { printf "%d", sum / 1024 }' "${files[@]}"
}

# permille prints ticks per seconds as thousandths of a processor.
permille() { awk -v ticks="$1" -v of="$(getconf CLK_TCK)" -v seconds="$seconds" 'BEGIN { printf "%.1f", ticks / of / seconds * 1000 }'; }

: >"$dir/log" # before it is searched
"$root/bin/millwright" up --dir "$dir/up" --guest "$guest" --api-port "$api" --image-port "$images" >"$dir/log" 2>&1 &
up=$!
until grep -q 'Ready after' "$dir/log"; do
	kill -0 "$up" 2>/dev/null || { cat "$dir/log" >&2 && exit 1; }
	sleep 0.2
done
kubectl=$(grep -o '[^ ]*/kubectl' "$dir/log" | head -1)
export KUBECONFIG=$dir/up/kubeconfig

begin=$(date +%s%N)
sed "s/replicas: 3/replicas: $number/; s/:16443/:$api/; s/:16480/:$images/" "$pool" | "$kubectl" apply -f - >/dev/null
"$kubectl" wait machinedeployments.machine.sapcloud.io/pool --for=jsonpath='{.status.availableReplicas}'="$number" --timeout=30m >/dev/null
took=$((($(date +%s%N) - begin) / 1000000))

mapfile -t qemus < <(pgrep -f "^[^ ]*qemu-system-[^ ]* .*$dir/")
hypervisors=()
for qemu in "${qemus[@]}"; do hypervisors+=("$(awk '/^PPid:/ { print $2 }' "/proc/$qemu/status")"); done
uname -srm
grep -m1 'model name' /proc/cpuinfo || true
printf '%d processors; load %s\n' "$(nproc)" "$(cut -d' ' -f1-3 /proc/loadavg)"
printf '%d %s guests Ready %d.%d s after "kubectl apply"\n' "$number" "$guest" $((took / 1000)) $((took % 1000 / 100))
printf 'memory per guest: %d MiB in QEMU, %d MiB in its hypervisor\n' \
	$(($(pss "${qemus[@]}") / number)) $(($(pss "${hypervisors[@]}") / number))
[[ -n $seconds ]] || exit 0

# The watchdog of a hypervisor with full leases is a separate process.
processes=("${hypervisors[@]}")
for hypervisor in "${hypervisors[@]}"; do
	mapfile -t watchdogs < <(pgrep -P "$hypervisor" -f watchdog)
	processes+=("${watchdogs[@]}")
done
own=$(ticks "${processes[@]}") qemu=$(ticks "${qemus[@]}")
sleep "$seconds"
own=$(($(ticks "${processes[@]}") - own)) qemu=$(($(ticks "${qemus[@]}") - qemu))
printf 'idle for %d s, load %s\n' "$seconds" "$(cut -d' ' -f1-3 /proc/loadavg)"
printf 'in addition to the guest: hypervisor %d MiB (resident %d MiB), QEMU %d MiB, of which translated code %d MiB; together %d MiB per Pod\n' \
	$(($(pss "${processes[@]}") / number)) $(($(resident "${processes[@]}") / number)) $(($(overhead "${qemus[@]}") / number)) \
	$(($(translated "${qemus[@]}") / number)) \
	$((($(pss "${processes[@]}") + $(overhead "${qemus[@]}")) / number))
printf 'processor per Pod: hypervisor %s m, QEMU with the guest %s m\n' \
	"$(permille $((own / number)))" "$(permille $((qemu / number)))"
