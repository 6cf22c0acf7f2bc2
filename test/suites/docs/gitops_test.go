package docs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// waiting matches the commands that the page about pools in Git gives for each kind, and the kind.
var waiting = regexp.MustCompile("`((?:kubectl wait (\\w+)|millwright rollout status) NAME[^`]*)`")

// gitOps runs the page about pools in Git. No manager acts in the namespace of the page, so its commands about the fields
// of a pool run there, and those that wait run on a pool in the namespace of local mode.
func (p *place) gitOps(t *testing.T) {
	const page = "tasks/gitops.md"
	p.runBlocks(t, page, `
kubectl create namespace argocd
kubectl create configmap argocd-cm -n argocd
kubectl create namespace machines
kubectl apply --server-side --field-manager=kustomize-controller -n machines -k examples/gitops/pool
`)
	p.run(t, page)
	p.runBlocks(t, page, `
test "$(kubectl get configmap argocd-cm -n argocd -o yaml | grep -c ' resource.customizations.health.')" = 4
kubectl get machinedeployment pool -n machines -o yaml --show-managed-fields | grep 'manager: replicas'
kubectl delete namespace argocd machines --timeout=5m
`)

	// There is no VM controller, so its status is written here.
	p.runBlocks(t, page, fmt.Sprintf(`
kubectl create secret generic pool --from-literal=userData=none
sed 's/namespace: machines/namespace: default/' examples/gitops/pool/pool.yaml | kubectl apply -f -
kubectl apply -f examples/virtualmachine/vm.yaml
kubectl patch virtualmachine single --subresource=status --type=merge -p '{"status": {"conditions": [
  {"type": %q, "status": "True", "reason": "Running", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}'
`, vmv1alpha1.ConditionReady))
	first := func(kind string) string {
		return "$(kubectl get " + kind + " -l name=pool -o jsonpath='{.items[0].metadata.name}')"
	}
	names := map[string]string{
		"": "pool", "machinedeployment": "pool", "machineset": first("machinesets"), "machine": first("machines"), "virtualmachine": "single",
	}
	text := read(t, filepath.Join(p.root, "docs", page))
	for _, command := range waiting.FindAllStringSubmatch(text, -1) {
		p.runBlocks(t, page, strings.Replace(command[1], "NAME", names[command[2]], 1))
		delete(names, command[2])
	}
	if len(names) > 0 {
		t.Errorf("%s has no command for %v", page, names)
	}
	p.runBlocks(t, page, `
kubectl delete -k examples/gitops/pool --timeout=5m
kubectl wait machines -l name=pool --for=delete --timeout=5m
kubectl delete secret pool
kubectl delete -f examples/virtualmachine/vm.yaml --timeout=5m
`)
	p.isEmpty(t)
}
