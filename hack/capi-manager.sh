#!/usr/bin/env bash
# Runs one of Cluster API's managers for a cluster of "millwright up", which has no kubelet to run it in a
# Pod: installs its kinds, roles and webhooks in the cluster, then executes it.
#
#   hack/capi-manager.sh core|bootstrap|controlplane VERSION [DIR [PORT]]
#
# The managers are the core and the providers for kubeadm, of bootstrap data and of control
# planes, which need the core. VERSION is one of those below test/suites/capi; it is built if necessary.
# DIR is the directory of "up", by default .millwright. PORT is the port of the webhooks, by default 9443,
# 9444 or 9445; 0 for any free port. A manager only has its own roles, and logs to
# DIR/logs/capi-MANAGER.log. Ctrl-C stops it.
#
# Environment:
#   KUBECTL  path of kubectl; defaults to that of hack/controlplane.sh
set -euo pipefail

manager=${1:?which manager: core, bootstrap or controlplane} version=${2:?which version of Cluster API; see test/suites/capi}
dir=$(realpath -- "${3:-.millwright}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
user=capi-$manager
log() { printf '%s\n' "$user: $*"; }
responds() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

# Additional flags of a manager. The etcds of emulated machines respond slowly.
flags=()
if [[ $manager == controlplane ]]; then flags=(--etcd-dial-timeout-duration 1m --etcd-call-timeout-duration 1m); fi

# A permission that a manager needs before it starts, since it retries only after a long time. Core and
# control planes get it from infrastructure providers, including Millwright.
case $manager in
core) program=core config=. port=9443 needs=millwrightmachines.infrastructure.millwright.dev ;;
bootstrap) program=bootstrap/manager config=bootstrap port=9444 needs=kubeadmconfigs.bootstrap.cluster.x-k8s.io ;;
controlplane) program=controlplane/manager config=controlplane port=9445 needs=millwrightmachines.infrastructure.millwright.dev ;;
*)
	log "unknown manager; expected core, bootstrap or controlplane" >&2
	exit 2
	;;
esac
port=${4:-$port}
[[ -r $dir/kubeconfig ]] || { log "$dir/kubeconfig not found; is \"millwright up\" running?" >&2; exit 1; }
if ((port == 0)); then
	# Below the ports that Linux uses for outgoing connections.
	port=$((20000 + RANDOM % 12768))
	while responds; do port=$((20000 + RANDOM % 12768)); done
elif responds; then
	log "port $port is in use by another process; choose another one" >&2
	exit 1
fi
built=$("$repository/hack/capi.sh" "$version")
[[ -x $built/$program ]] || { log "$version is built without this manager: go.mod in test/suites/capi does not list it as a tool" >&2; exit 1; }
config=$built/$config
kubectl=${KUBECTL:-$("$repository/hack/controlplane.sh")/kubectl}
export KUBECONFIG=$dir/kubeconfig
kubectl() { "$kubectl" "$@" >/dev/null; }
# eventually runs a command until it succeeds. After twenty seconds, it prints the output and fails.
eventually() {
	local end=$((SECONDS + 20))
	until "$@" 2>/dev/null; do
		if ((SECONDS >= end)); then
			"$@"
			return
		fi
		sleep 0.2
	done
}

log "installing the kinds of $version"
kubectl apply --server-side -f "$config/crd"
# It fails immediately for a kind that has no conditions yet.
eventually kubectl wait --for condition=Established --timeout 60s -f "$config/crd"

# The roles of all managers have the same names. The aggregated role collects the roles of providers,
# including Millwright, by their labels.
kubectl apply -f "$repository/config/rbac/capi-core-role.yaml"
for role in role aggregated_role; do
	[[ -f $config/rbac/$role.yaml ]] || continue
	sed -E "s/^  name: ((aggregated-)?manager-role)$/  name: $user-\1/" "$config/rbac/$role.yaml"
	name=manager-role
	if [[ $role == aggregated_role ]]; then name=aggregated-manager-role; fi
	cat <<-END
		---
		apiVersion: rbac.authorization.k8s.io/v1
		kind: ClusterRoleBinding
		metadata: {name: $user-$name}
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: $user-$name}
		subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: $user}]
		---
	END
done | kubectl apply -f -
eventually kubectl auth can-i list "$needs" --as "$user" || { log "user $user does not get its roles" >&2; exit 1; }

# The administrator's kubeconfig, acting as the manager's user.
umask 077
own=$dir/$user
mkdir -p "$own"
cp "$dir/kubeconfig" "$own/kubeconfig"
name=$("$kubectl" --kubeconfig "$own/kubeconfig" config view -o 'jsonpath={.users[0].name}')
kubectl --kubeconfig "$own/kubeconfig" config set "users.$name.act-as" "$user"

# The webhooks set defaults, so that nothing works without them.
if [[ ! -f $own/cert.pem ]]; then
	generator=$(go env GOROOT)/src/crypto/tls/generate_cert.go
	(cd "$own" && go run "$generator" --host 127.0.0.1 --ecdsa-curve P256 2>/dev/null)
fi
sed -e '/^    service:$/d' -e '/^      name: webhook-service$/d' -e '/^      namespace: system$/d' \
	-e "s|^      path: \(/.*\)|    url: https://127.0.0.1:$port\1\n    caBundle: $(base64 -w0 "$own/cert.pem")|" \
	-e "s/^  name: \(mutating\|validating\)-webhook-configuration$/  name: $user-\1-webhook-configuration/" \
	"$config/webhook/manifests.yaml" | kubectl apply -f -

# Reports when the webhooks respond, so that objects can be created. It runs detached, since the manager
# does not wait for children.
log=$dir/logs/$user.log
announce() {
	until responds; do
		kill -0 $$ 2>/dev/null || { log "the manager has exited; see $log" >&2; return; }
		sleep 0.2
	done
	log "$version is ready, and logs to $log"
}
(announce &)
exec "$built/$program" --kubeconfig "$own/kubeconfig" --webhook-port "$port" --webhook-cert-dir "$own" \
	--webhook-cert-name cert.pem --webhook-key-name key.pem \
	--health-addr 0 --diagnostics-address 0 --insecure-diagnostics "${flags[@]}" \
	>>"$log" 2>&1
