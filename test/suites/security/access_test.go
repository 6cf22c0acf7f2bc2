package security

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// valuable are the resources with which an attacker could take over a cluster, its machines or its virtual
// machines. The table of TestRBAC_ValuablePermissions covers them.
var valuable = []string{
	"secrets", "configmaps", "pods", "pods/exec", "pods/eviction", "pods/ephemeralcontainers",
	"nodes", "nodes/status", "nodes/proxy", "serviceaccounts", "serviceaccounts/token",
	"persistentvolumes", "persistentvolumeclaims", "namespaces", "events",
	"services", "endpointslices.discovery.k8s.io", "apiservices.apiregistration.k8s.io",
	"users impersonate", "groups impersonate",
	"leases.coordination.k8s.io",
	"volumeattachments.storage.k8s.io",
	"deployments.apps", "daemonsets.apps",
	"roles.rbac.authorization.k8s.io", "clusterroles.rbac.authorization.k8s.io",
	"rolebindings.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io",
	"roles.rbac.authorization.k8s.io escalate", "clusterroles.rbac.authorization.k8s.io bind",
	"certificatesigningrequests.certificates.k8s.io", "certificatesigningrequests/approval.certificates.k8s.io",
	"signers.certificates.k8s.io approve", "signers.certificates.k8s.io sign",
	"mutatingwebhookconfigurations.admissionregistration.k8s.io",
	"validatingadmissionpolicies.admissionregistration.k8s.io",
	"customresourcedefinitions.apiextensions.k8s.io",
	"tokenreviews.authentication.k8s.io", "subjectaccessreviews.authorization.k8s.io",
	"machines.machine.sapcloud.io", "machines/status.machine.sapcloud.io",
	"machinesets.machine.sapcloud.io", "machinedeployments.machine.sapcloud.io", "machineclasses.machine.sapcloud.io",
	"millwrightmachines.infrastructure.millwright.dev", "millwrightmachines/status.infrastructure.millwright.dev",
	"virtualmachines.vm.metropolis.monogon.dev", "virtualmachines/status.vm.metropolis.monogon.dev",
	"virtualmachines/hypervisors.vm.metropolis.monogon.dev", "hosts.vm.metropolis.monogon.dev",
	"virtualmachines/console.subresources.vm.metropolis.monogon.dev", "virtualmachines/log.subresources.vm.metropolis.monogon.dev",
	"virtualmachines/reset.subresources.vm.metropolis.monogon.dev", "virtualmachines/migrate.subresources.vm.metropolis.monogon.dev",
}

// verbs are checked for resources that do not specify others.
var verbs = []string{"get", "list", "create", "update", "patch", "delete"}

// ask returns the permissions of an identity, one line for each resource and place, such as "secrets in
// kube-system: get list".
func ask(t *testing.T, access *rest.Config, places map[string]string) []string {
	t.Helper()
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	group.SetLimit(8)
	lines := make([][]string, len(valuable)) // by resource, to keep the order
	for i, resource := range valuable {
		group.Go(func() error {
			for _, place := range []string{"everywhere", "own", "elsewhere", "kube-system"} {
				namespace, desired := places[place]
				if !desired {
					continue
				}
				may, err := mayDo(t, client, resource, namespace)
				if err != nil {
					return err
				}
				if len(may) > 0 {
					lines[i] = append(lines[i], fmt.Sprintf("%s in %s: %s", resource, place, strings.Join(may, " ")))
				}
				if place == "everywhere" && len(may) > 0 {
					break // then it has the permission in each namespace
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return slices.Concat(lines...)
}

func mayDo(t *testing.T, client kubernetes.Interface, resource, namespace string) ([]string, error) {
	name, verb, special := strings.Cut(resource, " ")
	asked := verbs
	if special {
		asked = []string{verb}
	}
	attributes := authorizationv1.ResourceAttributes{Namespace: namespace}
	name, attributes.Group, _ = strings.Cut(name, ".")
	attributes.Resource, attributes.Subresource, _ = strings.Cut(name, "/")
	var may []string
	for _, attributes.Verb = range asked {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes}}
		response, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		if response.Status.Allowed {
			may = append(may, attributes.Verb)
		}
	}
	return may, nil
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

// TestRBAC_ValuablePermissions checks that each identity has exactly the listed permissions on all valuable resources: for
// all names, in its own namespace, in another one, in kube-system and in all together.
func TestRBAC_ValuablePermissions(t *testing.T) {
	tier.All(t)
	for name, who := range identities {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := env.New(t)
			local(t, e)
			places := map[string]string{"everywhere": "", "own": e.Namespace, "elsewhere": elsewhere, "kube-system": "kube-system"}
			if diff := cmp.Diff(who.want, ask(t, who.access(t, e), places)); diff != "" {
				t.Errorf("what %s may do (-want +got):\n%s", name, diff)
			}
		})
	}
}
