#!/usr/bin/env bash
# Measures what guests of "millwright up" cost: the time from "kubectl apply" until all their nodes are Ready, and
# the memory of their processes (PSS, which counts shared pages in parts).
#
#   hack/bench-guests.sh small|full NUMBER
#
# It takes the ports of the examples, so no other "up" may run here.
set -euo pipefail

guest=$1 number=$2
root=$(cd "$(dirname "$0")/.." && pwd)
case $guest in
small) pool=$root/examples/pool.yaml ;;
full) pool=$root/examples/full/pool.yaml ;;
*) echo "bench-guests: there is no guest $guest: small or full" >&2 && exit 2 ;;
esac
folder=$(mktemp -d)
up=

finish() {
	if [[ -n $up ]]; then
		kill "$up" 2>/dev/null || true # it may have ended
		wait "$up" || true
		"$root/bin/millwright" down --dir "$folder/up" >/dev/null
	fi
	rm -rf "$folder"
}
trap finish EXIT

# pss prints the memory of processes together, in MiB.
pss() {
	local pid files=()
	for pid in "$@"; do files+=("/proc/$pid/smaps_rollup"); done
	awk '/^Pss:/ { sum += $2 } END { printf "%d", sum / 1024 }' "${files[@]}"
}

"$root/bin/millwright" up --dir "$folder/up" --guest "$guest" >"$folder/log" 2>&1 &
up=$!
until grep -q 'Ready after' "$folder/log"; do
	kill -0 "$up" 2>/dev/null || { cat "$folder/log" >&2 && exit 1; }
	sleep 0.2
done
kubectl=$(grep -o '[^ ]*/kubectl' "$folder/log" | head -1)
export KUBECONFIG=$folder/up/kubeconfig

begin=$(date +%s%N)
sed "s/replicas: 3/replicas: $number/" "$pool" | "$kubectl" apply -f - >/dev/null
"$kubectl" wait machinedeployments.machine.sapcloud.io/pool --for=jsonpath='{.status.availableReplicas}'="$number" --timeout=30m >/dev/null
took=$((($(date +%s%N) - begin) / 1000000))

mapfile -t qemus < <(pgrep -f "^[^ ]*qemu-system-[^ ]* .*$folder/")
hypervisors=()
for qemu in "${qemus[@]}"; do hypervisors+=("$(awk '/^PPid:/ { print $2 }' "/proc/$qemu/status")"); done
uname -srm
grep -m1 'model name' /proc/cpuinfo || true
printf '%d processors; load %s\n' "$(nproc)" "$(cut -d' ' -f1-3 /proc/loadavg)"
printf '%d %s guests Ready %d.%d s after "kubectl apply"\n' "$number" "$guest" $((took / 1000)) $((took % 1000 / 100))
printf 'memory per guest: %d MiB in QEMU, %d MiB in its hypervisor\n' \
	$(($(pss "${qemus[@]}") / number)) $(($(pss "${hypervisors[@]}") / number))
