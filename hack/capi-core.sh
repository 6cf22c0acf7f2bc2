#!/usr/bin/env bash
# Runs the core of Cluster API beside a cluster of "millwright up", which has no kubelet to
# run it in a Pod: puts its kinds, roles and webhooks into the cluster, then becomes it.
#
#   hack/capi-core.sh VERSION [DIR [PORT]]
#
# VERSION is one of those below test/capi; it is built if it is not yet. DIR is the folder of
# "up", by default .millwright. PORT is where the webhooks are served, by default 9443; 0 is
# any free one. The core has its own roles only, and logs to DIR/logs/capi-core.log. Ctrl-C
# ends it.
#
# Environment:
#   KUBECTL  that of hack/controlplane.sh by default
set -euo pipefail

version=${1:?which version of Cluster API; see test/capi}
dir=$(realpath -- "${2:-.millwright}") port=${3:-9443}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
user=capi-core
say() { printf '%s\n' "capi-core: $*"; }
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

[[ -r $dir/kubeconfig ]] || { say "there is no $dir/kubeconfig; is \"millwright up\" running?" >&2; exit 1; }
if ((port == 0)); then
	# Below those that Linux gives to outgoing connections.
	port=$((20000 + RANDOM % 12768))
	while answers; do port=$((20000 + RANDOM % 12768)); done
elif answers; then
	say "port $port is taken by another process: name another one" >&2
	exit 1
fi
built=$("$repository/hack/capi.sh" "$version")
kubectl=${KUBECTL:-$("$repository/hack/controlplane.sh")/kubectl}
export KUBECONFIG=$dir/kubeconfig
kubectl() { "$kubectl" "$@" >/dev/null; }

say "installing the kinds of $version"
kubectl apply --server-side -f "$built/crd"
kubectl wait --for condition=Established --timeout 60s -f "$built/crd"

# The core collects the roles of providers, ours among them, by their labels.
kubectl apply -f "$built/rbac/role.yaml" -f "$built/rbac/aggregated_role.yaml" -f "$repository/config/rbac/capi-core-role.yaml"
for role in manager-role aggregated-manager-role; do
	cat <<-END
		---
		apiVersion: rbac.authorization.k8s.io/v1
		kind: ClusterRoleBinding
		metadata: {name: $user-$role}
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: $role}
		subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: $user}]
	END
done | kubectl apply -f -
# A core that starts before it has its roles waits long until it asks again.
for attempt in {1..100}; do
	if kubectl auth can-i list millwrightmachines.infrastructure.millwright.dev --as "$user"; then break; fi
	((attempt < 100)) || { say "the user $user gets no roles" >&2; exit 1; }
	sleep 0.2
done

# The administrator's kubeconfig, acting as the core's user.
umask 077
own=$dir/capi-core
mkdir -p "$own"
cp "$dir/kubeconfig" "$own/kubeconfig"
name=$("$kubectl" --kubeconfig "$own/kubeconfig" config view -o 'jsonpath={.users[0].name}')
kubectl --kubeconfig "$own/kubeconfig" config set "users.$name.act-as" "$user"

# The webhooks fill in what users leave out, so the core does not work without them.
if [[ ! -f $own/cert.pem ]]; then
	program=$(go env GOROOT)/src/crypto/tls/generate_cert.go
	(cd "$own" && go run "$program" --host 127.0.0.1 --ecdsa-curve P256 2>/dev/null)
fi
sed -e '/^    service:$/d' -e '/^      name: webhook-service$/d' -e '/^      namespace: system$/d' \
	-e "s|^      path: \(/.*\)|    url: https://127.0.0.1:$port\1\n    caBundle: $(base64 -w0 "$own/cert.pem")|" \
	"$built/webhook/manifests.yaml" | kubectl apply -f -

# Says when it answers, which is when objects can be created. It is nobody's child, since the
# core waits for none.
log=$dir/logs/capi-core.log
tell() {
	until answers; do
		kill -0 $$ 2>/dev/null || { say "the core has ended, see $log" >&2; return; }
		sleep 0.2
	done
	say "$version is ready, and logs to $log"
}
(tell &)
exec "$built/core" --kubeconfig "$own/kubeconfig" --webhook-port "$port" --webhook-cert-dir "$own" \
	--webhook-cert-name cert.pem --webhook-key-name key.pem \
	--health-addr 0 --diagnostics-address 0 --insecure-diagnostics \
	>>"$log" 2>&1
