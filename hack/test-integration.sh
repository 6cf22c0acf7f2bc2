#!/usr/bin/env bash
# Runs MCM's integration suite with the controllers and a driver of millwright.
#
#   hack/test-integration.sh
#
# With CONTROL_KUBECONFIG in the environment, it uses those clusters, as docs/drivers/mcm-providers.md describes.
# Otherwise, it starts local mode with the driver DRIVER, sim (the default) or vm, in a temporary directory, and
# stops it afterwards. bin/millwright must be built. FOCUS is a regular expression of the specs to run.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
millwright=${MILLWRIGHT:-$PWD/bin/millwright}
export CONTROLLERS_TEST_LOGS=${CONTROLLERS_TEST_LOGS:-$PWD/.ci/controllers-test/logs}

# suite runs the specs, or a suite that is already compiled.
suite() {
	local flags=(-ginkgo.v ${FOCUS:+"-ginkgo.focus=$FOCUS"})
	echo 'Starting integration tests...'
	if [[ -n ${SUITE:-} ]]; then
		"$SUITE" -test.timeout 30m "${flags[@]}"
	else
		go -C compat/mcm test -count=1 -timeout 30m ./test/integration/controller -v "${flags[@]}"
	fi
}

if [[ -n ${CONTROL_KUBECONFIG:-} ]]; then
	suite
	exit
fi

driver=${DRIVER:-sim}
guest=
[[ $driver != vm ]] || guest=$(hack/guest.sh)
dir=$(mktemp -d)
# As with MCM's programs, minReadySeconds has no effect: it exceeds the timeout of the suite.
"$millwright" up --driver "$driver" ${guest:+--images "$guest"} --dir "$dir/local" --api-port 0 --image-port 0 --unsafe-no-fsync \
	--enforce-min-ready-seconds=false >"$dir/up.log" 2>&1 &
up=$!
finish() {
	local status=$?
	kill "$up" 2>/dev/null || true
	wait "$up" || true
	if ((status == 0)); then
		rm -rf "$dir"
	else
		echo "local mode and its logs are in $dir" >&2
	fi
}
trap finish EXIT
until grep -q 'Ready after' "$dir/up.log"; do
	kill -0 "$up" 2>/dev/null || {
		cat "$dir/up.log" >&2
		exit 1
	}
	sleep 0.2
done

export CONTROL_KUBECONFIG=$dir/local/kubeconfig CONTROL_CLUSTER_NAMESPACE=integration TARGET_CLUSTER_NAME=integration
export MACHINECLASS_V1=$dir/v1.yaml MACHINECLASS_V2=$dir/v2.yaml SECRET=$dir/secret.yaml
port=$(sed -n 's|.*server: https://.*:\([0-9]*\)$|\1|p' "$CONTROL_KUBECONFIG" | head -n 1)

# class and secret print the class and the Secret of the machines. The two classes differ in one value.
case $driver in
sim)
	specification() {
		echo "{pool: integration, joinDelay: ${1}s, tags: {kubernetes.io/cluster/integration: '1', kubernetes.io/role/node: '1'}}"
	}
	userdata='none'
	vms="--sim-dir=$dir/vms"
	access=$vms
	;;
vm)
	specification() {
		echo "{vmPool: default, size: xsmall, rootFsSize: $1, tags: {kubernetes.io/cluster/integration: '1', kubernetes.io/role/node: '1'}," \
			"kernelBoot: {kernel: {url: 'file://$guest/vmlinux'}, initrd: {url: 'file://$guest/initrd'}, commandLine: console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable}}"
	}
	userdata="#millwright-guest\nserver: https://10.77.0.2:$port\ntoken: <<BOOTSTRAP_TOKEN>>\nnodeName: <<MACHINE_NAME>>\nproviderID: millwright:///default/\${uuid}\n"
	vms=--approve-node-certificates # local mode approves only those of its own Machines
	access="--kubeconfig=$CONTROL_KUBECONFIG"
	;;
*)
	echo "invalid DRIVER $driver; use sim or vm" >&2
	exit 2
	;;
esac
# The controllers of local mode manage only the namespace default, including its VMs. The machines are in another
# namespace, managed by two separate controller processes. Each has only one instance, which must not exit because
# virtual machines without KVM leave it no time to renew its lease.
leases='--leader-elect-lease-duration=6m --leader-elect-renew-deadline=5m'
flags="--control-kubeconfig=$CONTROL_KUBECONFIG --target-kubeconfig=$CONTROL_KUBECONFIG --namespace=integration --port=0 $leases"
export MACHINE_CONTROLLER_COMMAND="$millwright machine-controller $flags --driver=$driver${vms:+ $vms}"
export MACHINE_CONTROLLER_MANAGER_COMMAND="$millwright machine-controller-manager $flags --machine-safety-overshooting-period=300ms"

for version in 1 2; do
	cat >"$dir/v$version.yaml" <<EOF
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {name: test-mc-v$version}
provider: $driver
providerSpec: $(specification "$version")
secretRef: {namespace: $CONTROL_CLUSTER_NAMESPACE, name: test-mc-secret}
EOF
done
cat >"$SECRET" <<EOF
apiVersion: v1
kind: Secret
metadata: {namespace: $CONTROL_CLUSTER_NAMESPACE, name: test-mc-secret}
stringData: {userData: "$userdata"}
EOF
kubectl="$(hack/controlplane.sh 2>/dev/null)/kubectl --kubeconfig=$CONTROL_KUBECONFIG"
$kubectl create namespace "$CONTROL_CLUSTER_NAMESPACE" --dry-run=client -o yaml | $kubectl apply -f - >/dev/null 2>&1
$kubectl apply -f "$SECRET" >/dev/null
export LIST_COMMAND="$millwright instance list -o json --driver=$driver --class=$MACHINECLASS_V1 --secret=$SECRET $access"
suite
