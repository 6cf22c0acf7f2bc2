package bootstrap_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// tokenForm is the format that Kubernetes requires: k8s.io/cluster-bootstrap/token/api.
var tokenForm = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)

var machine = types.NamespacedName{Namespace: "shoot--a", Name: "pool-z1-abcde"}

const valid = 20 * time.Minute

func issue(t *testing.T, tokens *bootstrap.Tokens) string {
	t.Helper()
	token, err := tokens.Issue(t.Context(), machine, valid)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func revoke(t *testing.T, tokens *bootstrap.Tokens) {
	t.Helper()
	if err := tokens.Revoke(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
}

func TestIssue_Secret(t *testing.T) {
	c := newCluster(t)
	tokens := c.tokens()
	tokens.Groups = "system:bootstrappers:nodes"
	token := issue(t, tokens)
	if !tokenForm.MatchString(token) {
		t.Fatalf("the token does not have the format %v", tokenForm)
	}
	id, secret, _ := strings.Cut(token, ".")
	got := c.only()
	if got.Namespace != "kube-system" || got.Name != "bootstrap-token-"+id || got.Type != corev1.SecretTypeBootstrapToken {
		t.Errorf("Secret %s/%s of type %s is not found by the token authenticator", got.Namespace, got.Name, got.Type)
	}
	text := map[string]string{}
	for key, value := range got.Data {
		text[key] = string(value)
	}
	if !strings.Contains(text["description"], machine.String()) {
		t.Errorf("the description %q does not name the machine", text["description"])
	}
	delete(text, "description")
	want := map[string]string{
		"token-id": id, "token-secret": secret, "expiration": "2026-01-01T12:20:00Z",
		"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
		"auth-extra-groups": "system:bootstrappers:nodes",
	}
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	if !slices.Equal(c.requests, []string{"create"}) {
		t.Errorf("requests %v, want a single create", c.requests)
	}
}

func TestToken_Format(t *testing.T) {
	tier.Check(t, func(rt *rapid.T) {
		tokens := newCluster(t).tokens() // a separate cluster, so that tokens do not depend on earlier ones
		tokens.Installation = rapid.String().Draw(rt, "installation")
		key := types.NamespacedName{Namespace: rapid.String().Draw(rt, "namespace"), Name: rapid.String().Draw(rt, "name")}
		token, err := tokens.Issue(t.Context(), key, valid)
		if err != nil || !tokenForm.MatchString(token) {
			rt.Fatalf("token of %q: wrong form, or error %v", key, err)
		}
	})
}

func TestIssue_IsIdempotent(t *testing.T) {
	for name, restart := range map[string]bool{"same process": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			tokens := c.tokens()
			first := issue(t, tokens)
			before := c.only()
			if restart {
				tokens = c.tokens()
			}
			c.clock.SetTime(c.clock.Now().Add(valid / 2))
			if second := issue(t, tokens); second != first {
				t.Error("the machine got another token")
			}
			if diff := cmp.Diff(before, c.only()); diff != "" {
				t.Errorf("the Secret was written again (-before +after):\n%s", diff)
			}
		})
	}
}

func TestIssue_RenewsToken(t *testing.T) {
	cases := map[string]struct {
		reason  string
		elapsed time.Duration
		spoil   func(*corev1.Secret)
	}{
		"expires soon": {"half the time has passed", valid/2 + time.Second, nil},
		"expired":      {"the VM may still start with it", 2 * valid, nil},
		"unreadable":   {"its expiry is unknown", 0, func(s *corev1.Secret) { s.Data["expiration"] = []byte("soon") }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			first := issue(t, c.tokens())
			before := c.only()
			if tc.spoil != nil {
				c.remove(before)
				tc.spoil(&before)
				before.ResourceVersion = ""
				if err := c.client.Create(t.Context(), &before); err != nil {
					t.Fatal(err)
				}
			}
			c.clock.SetTime(c.clock.Now().Add(tc.elapsed))
			if second := issue(t, c.tokens()); second != first {
				t.Errorf("%s: the machine got another token, which its VM does not have", tc.reason)
			}
			after := c.only()
			if want := c.clock.Now().Add(valid).Format(time.RFC3339); string(after.Data["expiration"]) != want {
				t.Errorf("%s: it expires at %s, want %s", tc.reason, after.Data["expiration"], want)
			}
			if after.UID == before.UID {
				t.Error("the Secret was updated, which MCM's role does not allow")
			}
		})
	}
}

func TestIssue_DeletedTokenKeepsItsValue(t *testing.T) {
	c := newCluster(t)
	tokens := c.tokens()
	first := issue(t, tokens)
	c.remove(c.only())
	if second := issue(t, tokens); second != first {
		t.Error("the machine got another token, which its VM does not have")
	}
}

func TestIssue_FailedRenewalKeepsToken(t *testing.T) {
	c := newCluster(t)
	first := issue(t, c.tokens())
	c.clock.SetTime(c.clock.Now().Add(valid))

	tokens := c.tokens()
	away := apierrors.NewServiceUnavailable("away")
	c.afterDelete = func() { c.fail["create"] = away }
	if _, err := tokens.Issue(t.Context(), machine, valid); !errors.Is(err, away) {
		t.Fatalf("error %v, want the error of the API server", err)
	}
	if len(c.all()) != 0 {
		t.Fatal("the renewal did not fail between deletion and creation")
	}
	delete(c.fail, "create")
	if second := issue(t, tokens); second != first {
		t.Error("the machine got another token, which its VM does not have")
	}
}

func TestToken_DiffersPerMachine(t *testing.T) {
	c := newCluster(t)
	other := c.tokens()
	other.Installation = "shoot--b"
	seen := map[string]bool{}
	for _, tokens := range []*bootstrap.Tokens{c.tokens(), other} {
		for _, key := range []types.NamespacedName{machine, {Namespace: machine.Namespace, Name: "x"}, {Namespace: "y", Name: machine.Name}} {
			token, err := tokens.Issue(t.Context(), key, valid)
			if err != nil {
				t.Fatal(err)
			}
			id, secret, _ := strings.Cut(token, ".")
			if seen[id] || seen[secret] {
				t.Errorf("the token of %s in %s has a part in common with another one", key, tokens.Installation)
			}
			seen[id], seen[secret] = true, true
		}
	}
}

// TestToken_DependsOnMachineOnly checks that the token ID is derived from the machine, so that a token can be
// found again, and that the token secret is not, so that it cannot be predicted.
func TestToken_DependsOnMachineOnly(t *testing.T) {
	first := issue(t, newCluster(t).tokens())
	second := issue(t, newCluster(t).tokens())
	if first[:6] != second[:6] || first[7:] == second[7:] {
		t.Error("want equal ids and different secrets")
	}
	other := newCluster(t).tokens()
	other.Installation = "shoot--b"
	if third := issue(t, other); third[:6] == first[:6] {
		t.Error("machines of two installations have the same ID")
	}
}

func TestRevoke(t *testing.T) {
	for name, restart := range map[string]bool{"same process": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			tokens := c.tokens()
			token := issue(t, tokens)
			c.requests = nil
			if restart {
				tokens = c.tokens()
			}
			revoke(t, tokens)
			if left := c.all(); len(left) != 0 {
				t.Errorf("%d tokens remain", len(left))
			}
			if reads := slices.Contains(c.requests, "get"); reads != restart {
				t.Errorf("requests %v; only a process that did not issue the token has to read it", c.requests)
			}
			c.requests = nil
			revoke(t, tokens) // already deleted
			if len(c.requests) != 0 {
				t.Errorf("requests %v for a token that is known to be gone", c.requests)
			}
			if issue(t, tokens) == token {
				t.Error("a revoked token is valid again")
			}
		})
	}
}

// TestIssue_CreationWithoutResponse checks that a token whose creation got no response is revoked, even if the
// machine was known to have none before.
func TestIssue_CreationWithoutResponse(t *testing.T) {
	c := newCluster(t)
	tokens := c.tokens()
	revoke(t, tokens)
	issue(t, c.tokens()) // simulates a request of this process whose response is lost
	c.fail = map[string]error{"create": apierrors.NewServiceUnavailable("no response")}
	if _, err := tokens.Issue(t.Context(), machine, valid); err == nil {
		t.Fatal("no error")
	}
	revoke(t, tokens)
	if left := c.all(); len(left) != 0 {
		t.Error("the token remains")
	}
}

func TestRevoke_RenewedToken(t *testing.T) {
	c := newCluster(t)
	tokens := c.tokens()
	issue(t, tokens)
	c.clock.SetTime(c.clock.Now().Add(valid))
	issue(t, c.tokens()) // another process was the leader in the meantime
	revoke(t, tokens)
	if left := c.all(); len(left) != 0 {
		t.Error("the renewed token remains")
	}
}

func TestRevoke_RetriesAfterError(t *testing.T) {
	for name, restart := range map[string]bool{"same process": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			tokens := c.tokens()
			issue(t, tokens)
			if restart {
				tokens = c.tokens()
			}
			for _, verb := range []string{"delete", "get"} {
				away := apierrors.NewServiceUnavailable("away")
				c.fail = map[string]error{verb: away}
				if err := tokens.Revoke(t.Context(), machine); err != nil && !errors.Is(err, away) {
					t.Errorf("%s: error %v", verb, err)
				} else if err == nil && len(c.all()) != 0 {
					t.Errorf("%s: no error, but the token remains", verb)
				}
			}
			c.fail = map[string]error{}
			revoke(t, tokens)
			if len(c.all()) != 0 {
				t.Error("the token remains")
			}
		})
	}
}

func TestIssue_IDCollision(t *testing.T) {
	measure := newCluster(t)
	issue(t, measure.tokens())
	taken := measure.only().Name

	for name, tc := range map[string]struct{ restart, otherGone bool }{
		"same process":    {false, false},
		"after a restart": {true, false},
		"after a restart, the other token expired": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.occupy(taken)
			theirs := c.only()
			tokens := c.tokens()
			first := issue(t, tokens)
			if !tokenForm.MatchString(first) || strings.HasPrefix("bootstrap-token-"+first, taken) {
				t.Fatal("the machine has the same token ID as another one")
			}
			if again := issue(t, c.tokens()); again != first {
				t.Error("the token is not found again")
			}
			if tc.restart {
				tokens = c.tokens()
			}
			if tc.otherGone {
				c.remove(theirs)
			}
			revoke(t, tokens)
			want := map[string]corev1.Secret{taken: theirs}
			if tc.otherGone {
				want = map[string]corev1.Secret{}
			}
			if diff := cmp.Diff(want, c.all()); diff != "" {
				t.Errorf("only the other token must remain unchanged (-want +got):\n%s", diff)
			}
		})
	}
}

// TestIssue_InvalidSecret checks that users with write access to Secrets in kube-system cannot inject text into the
// user data of a machine with a Secret that looks like its token. Such a Secret is ignored and not changed.
func TestIssue_InvalidSecret(t *testing.T) {
	for name, spoil := range map[string]func(*corev1.Secret){
		"commands":        func(s *corev1.Secret) { s.Data["token-secret"] = []byte("0123456789abcdef\nruncmd: [evil]") },
		"ID with more":    func(s *corev1.Secret) { s.Data["token-id"] = append(s.Data["token-id"], "\nevil: "...) },
		"another ID":      func(s *corev1.Secret) { s.Data["token-id"] = []byte("000000") },
		"capitals":        func(s *corev1.Secret) { s.Data["token-secret"] = []byte("0123456789ABCDEF") },
		"short":           func(s *corev1.Secret) { s.Data["token-secret"] = []byte("0123456789abcde") },
		"empty":           func(s *corev1.Secret) { s.Data["token-secret"] = nil },
		"of another type": func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque },
		"another owner's": func(s *corev1.Secret) { s.Data["description"] = []byte("Bootstrap token of machine a/b") },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			issue(t, c.tokens())
			forged := c.only()
			c.remove(forged)
			spoil(&forged)
			forged.ResourceVersion = ""
			if err := c.client.Create(t.Context(), &forged); err != nil {
				t.Fatal(err)
			}
			before := c.all()
			if left, err := c.tokens().Keep(t.Context(), machine, valid); err != nil || left != 0 {
				t.Errorf("it is kept: %v, %v", left, err)
			}
			if issued, err := c.tokens().Issued(t.Context(), machine, forged.Name[len("bootstrap-token-"):]); err != nil || issued {
				t.Errorf("issued: %t, %v", issued, err)
			}
			if token := issue(t, c.tokens()); !tokenForm.MatchString(token) {
				t.Errorf("the machine gets %q", token)
			}
			revoke(t, c.tokens())
			if diff := cmp.Diff(before, c.all()); diff != "" {
				t.Errorf("the other Secret changed, or more Secrets remain (-was +is):\n%s", diff)
			}
		})
	}
}

func TestIssue_NoFreeID(t *testing.T) {
	c := newCluster(t)
	var taken []string
	for range 4 {
		// The IDs that a machine tries are determined by calling Issue.
		trial := newCluster(t)
		for _, name := range taken {
			trial.occupy(name)
		}
		token := issue(t, trial.tokens())
		taken = append(taken, "bootstrap-token-"+token[:6])
	}
	for _, name := range taken {
		c.occupy(name)
	}
	before := c.all()
	if _, err := c.tokens().Issue(t.Context(), machine, valid); err == nil {
		t.Fatal("issued a fifth")
	}
	revoke(t, c.tokens())
	if diff := cmp.Diff(before, c.all()); diff != "" {
		t.Errorf("other tokens were changed (-before +after):\n%s", diff)
	}
}

// TestErrors_DoNotContainToken checks that errors contain no token, because they are written to logs, events and the
// status of machines.
func TestErrors_DoNotContainToken(t *testing.T) {
	for _, verb := range []string{"create", "get", "delete"} {
		t.Run(verb, func(t *testing.T) {
			c := newCluster(t)
			first := issue(t, c.tokens())
			c.clock.SetTime(c.clock.Now().Add(valid))
			away := apierrors.NewServiceUnavailable("away")
			c.fail[verb] = away
			_, errIssue := c.tokens().Issue(t.Context(), machine, valid)
			errRevoke := c.tokens().Revoke(t.Context(), machine)
			if !errors.Is(errIssue, away) {
				t.Errorf("Issue: %v, want the error of the API server", errIssue)
			}
			if verb != "create" && !errors.Is(errRevoke, away) {
				t.Errorf("Revoke: %v, want the error of the API server", errRevoke)
			}
			secret := strings.Split(first, ".")[1]
			for _, err := range []error{errIssue, errRevoke} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Error("an error contains the token secret")
				}
			}
		})
	}
}
