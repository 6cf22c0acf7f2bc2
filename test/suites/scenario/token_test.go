package scenario

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestBootstrapToken_Authenticates checks that the bootstrap token of a VM authenticates at a real API server as a
// member of the configured groups, until it is revoked.
func TestBootstrapToken_Authenticates(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	const group = "system:bootstrappers:pool"
	tokens := &bootstrap.Tokens{Target: e.Client, Installation: e.Namespace, Groups: group, Clock: clock.RealClock{}}
	machine := types.NamespacedName{Namespace: e.Namespace, Name: "one"}
	token, err := tokens.Issue(t.Context(), machine, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	bearer, err := kubernetes.NewForConfig(&rest.Config{
		Host: e.Admin.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: e.Admin.CAData},
	})
	if err != nil {
		t.Fatal(err)
	}
	review := func() (*authenticationv1.SelfSubjectReview, error) {
		return bearer.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	}
	g := gomega.NewWithT(t)
	g.Eventually(func(g gomega.Gomega) {
		who, err := review()
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(who.Status.UserInfo.Username).To(gomega.HavePrefix("system:bootstrap:"))
		g.Expect(who.Status.UserInfo.Groups).To(gomega.ContainElements("system:bootstrappers", group))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())

	if err := tokens.Revoke(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	g.Eventually(func() bool {
		_, err := review()
		return apierrors.IsUnauthorized(err)
	}).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())
}
