package security

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestMain(m *testing.M) {
	env.AtATime(8)
	env.Main(m)
}

// elsewhere is a namespace without any roles.
const elsewhere = "kube-public"

// verbs are all verbs of requests for objects.
var verbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

// unserved are the permissions on names under which this API server serves nothing, but that it or a policy checks.
var unserved = []string{
	"users impersonate", "groups impersonate", "uids.authentication.k8s.io impersonate",
	"serviceaccounts impersonate", "userextras.authentication.k8s.io impersonate",
	"roles.rbac.authorization.k8s.io escalate", "clusterroles.rbac.authorization.k8s.io escalate",
	"roles.rbac.authorization.k8s.io bind", "clusterroles.rbac.authorization.k8s.io bind",
	"certificatesigningrequests/nodeclient.certificates.k8s.io create", "certificatesigningrequests/selfnodeclient.certificates.k8s.io create",
	"certificatesigningrequests/selfnodeserver.certificates.k8s.io create",
	"signers.certificates.k8s.io approve", "signers.certificates.k8s.io sign", "signers.certificates.k8s.io attest",
	"virtualmachines/hypervisors.vm.metropolis.monogon.dev create", "hosts.vm.metropolis.monogon.dev create",
	"bootstraptokens.machine.millwright.dev create", "secretfinalizers.infrastructure.millwright.dev update",
	"virtualmachines/console.subresources.vm.metropolis.monogon.dev get", "virtualmachines/log.subresources.vm.metropolis.monogon.dev get",
	"virtualmachines/portforward.subresources.vm.metropolis.monogon.dev get",
	"virtualmachines/vnc.subresources.vm.metropolis.monogon.dev get", "virtualmachines/screenshot.subresources.vm.metropolis.monogon.dev get",
	"virtualmachines/pause.subresources.vm.metropolis.monogon.dev create", "virtualmachines/pause.subresources.vm.metropolis.monogon.dev delete",
	"virtualmachines/reset.subresources.vm.metropolis.monogon.dev create",
	"virtualmachines/migrate.subresources.vm.metropolis.monogon.dev create", "virtualmachines/migrate.subresources.vm.metropolis.monogon.dev delete",
}

// permission is a permission on a resource, such as "pods/exec", or on a URL. An empty name means all names.
type permission struct{ resource, name, verb string }

// permissionsIn returns all permissions in a namespace, including those in all namespaces. They do not depend on which
// resources are known: the API server lists all rules that apply to the caller.
func permissionsIn(t *testing.T, client kubernetes.Interface, namespace string) map[permission]bool {
	t.Helper()
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	response, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if rules := response.Status; rules.Incomplete || rules.EvaluationError != "" {
		t.Fatalf("the list of rules is incomplete: %s", rules.EvaluationError)
	}
	found := map[permission]bool{}
	for _, rule := range response.Status.ResourceRules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					for _, verb := range rule.Verbs {
						found[permission{strings.TrimSuffix(resource+"."+group, "."), name, verb}] = true
					}
				}
			}
		}
	}
	for _, rule := range response.Status.NonResourceRules {
		for _, url := range rule.NonResourceURLs {
			for _, verb := range rule.Verbs {
				found[permission{url, "", verb}] = true
			}
		}
	}
	return found
}

// list returns all permissions of an identity, one line for each resource and place, such as "secrets in kube-system:
// get list", or "leases.coordination.k8s.io NAME in own: get" if a permission is only for one name.
func list(t *testing.T, access *rest.Config, places map[string]string) []string {
	t.Helper()
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	everywhere := permissionsIn(t, client, elsewhere) // only what applies to all namespaces
	lines := describe("everywhere", everywhere)
	for place, namespace := range places {
		there := permissionsIn(t, client, namespace)
		maps.DeleteFunc(there, func(p permission, _ bool) bool { return everywhere[p] })
		lines = append(lines, describe(place, there)...)
	}
	slices.Sort(lines)
	return lines
}

// describe returns a line for each resource.
func describe(place string, permissions map[permission]bool) []string {
	may := map[permission][]string{}
	for p := range permissions {
		of := permission{p.resource, p.name, ""}
		may[of] = append(may[of], p.verb)
	}
	var lines []string
	for of, verbs := range may {
		lines = append(lines, line(strings.TrimSpace(of.resource+" "+of.name), place, verbs))
	}
	return lines
}

func line(resource, place string, may []string) string {
	slices.SortFunc(may, func(a, b string) int {
		return cmp.Or(cmp.Compare(slices.Index(verbs, a), slices.Index(verbs, b)), cmp.Compare(a, b))
	})
	return fmt.Sprintf("%s in %s: %s", resource, place, strings.Join(may, " "))
}

// probe returns the permissions of a node in all namespaces, as list does. It attempts all verbs for each resource that
// the API server discovers, because it cannot list the permissions of nodes.
func probe(t *testing.T, admin, access *rest.Config) []string {
	t.Helper()
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string][]string{}
	for _, resource := range discovered(t, admin) {
		asked[resource] = slices.Clone(verbs)
	}
	for _, text := range unserved {
		resource, verb, _ := strings.Cut(text, " ")
		if !slices.Contains(asked[resource], verb) {
			asked[resource] = append(asked[resource], verb)
		}
	}
	resources := slices.Sorted(maps.Keys(asked))
	lines := make([]string, len(resources))
	var group errgroup.Group
	group.SetLimit(8)
	for i, resource := range resources {
		group.Go(func() error {
			var may []string
			for _, verb := range asked[resource] {
				allowed, err := mayDo(t, client, resource, verb)
				if err != nil {
					return err
				}
				if allowed {
					may = append(may, verb)
				}
			}
			if len(may) > 0 {
				lines[i] = line(resource, "everywhere", may)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// discovered returns all resources of an API server with their subresources.
func discovered(t *testing.T, admin *rest.Config) []string {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	_, groups, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var resources []string
	for _, list := range groups {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			resources = append(resources, strings.TrimSuffix(resource.Name+"."+version.Group, "."))
		}
	}
	return resources
}

func mayDo(t *testing.T, client kubernetes.Interface, resource, verb string) (bool, error) {
	attributes := authorizationv1.ResourceAttributes{Verb: verb}
	resource, attributes.Group, _ = strings.Cut(resource, ".")
	attributes.Resource, attributes.Subresource, _ = strings.Cut(resource, "/")
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes}}
	response, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return response.Status.Allowed, nil
}

// local adds what local mode has in addition to the shipped roles: the permissions to join, and the restriction
// of hosts.
func local(t *testing.T, e *env.Env) {
	t.Helper()
	if err := e.ControlPlane.AllowJoining(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, manifest := range []string{"local/hosts.yaml", "policy/hosts.yaml"} {
		text, err := config.Files.ReadFile(manifest)
		if err == nil {
			err = controlplane.ApplyText(t.Context(), e.Client, text, "")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// access returns the configuration with which the identity reaches the API server.
func (i identity) access(t *testing.T, e *env.Env) *rest.Config {
	t.Helper()
	if i.roles != nil {
		return e.UserWith(t, i.roles...)
	}
	groups := slices.Clone(i.groups)
	for n := range groups {
		groups[n] = strings.ReplaceAll(groups[n], "NAMESPACE", e.Namespace)
	}
	access, err := e.ControlPlane.UserConfig(strings.ReplaceAll(i.user, "NAMESPACE", e.Namespace), groups...)
	if err != nil {
		t.Fatal(err)
	}
	return access
}

// identity is a client of an API server.
type identity struct {
	// roles are the manifests that grant its permissions.
	roles []string
	// user and groups identify it if it has no roles. NAMESPACE is replaced by the test's namespace.
	user   string
	groups []string
	// want is the list of its permissions.
	want []string
}

// TestRBAC_GrantsNothingElse checks that each identity has exactly the listed permissions, in addition to those of every
// authenticated user: in its own namespace, in those of the system, and in all namespaces together. A permission that is not in
// the list fails the test, whatever the resource and the verb.
func TestRBAC_GrantsNothingElse(t *testing.T) {
	tier.All(t)
	for name, who := range identities {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := env.New(t)
			local(t, e)
			access, want := who.access(t, e), slices.Clone(who.want)
			var got []string
			if slices.Contains(who.groups, "system:nodes") {
				got = probe(t, e.Admin, access)
			} else {
				want = append(want, ofAnyone...)
				got = list(t, access, map[string]string{"own": e.Namespace, "kube-system": metav1.NamespaceSystem, "kube-node-lease": corev1.NamespaceNodeLease})
			}
			slices.Sort(want)
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("permissions of %s (-want +got):\n%s", name, diff)
			}
		})
	}
}

// TestRBAC_EveryRoleHasIdentity checks that TestRBAC_GrantsNothingElse covers each shipped role.
func TestRBAC_EveryRoleHasIdentity(t *testing.T) {
	files, err := fs.Glob(config.Files, "rbac/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found no roles: %v", err)
	}
	for _, file := range files {
		covered := false
		for _, who := range identities {
			covered = covered || slices.Contains(who.roles, "config/"+file)
		}
		if !covered {
			t.Errorf("no identity has the roles of %s", file)
		}
	}
}
