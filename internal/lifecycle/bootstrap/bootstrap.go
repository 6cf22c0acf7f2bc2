// Package bootstrap issues the bootstrap tokens that new machines need to join a cluster, one for each machine.
// Package userdata puts them into user data.
package bootstrap

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// Tokens issues and revokes the bootstrap tokens of machines. Each token is a Secret in the namespace
// kube-system of the target cluster, in the format of Kubernetes' bootstrap token authenticator. The token ID
// is derived from the machine, so that the token can be found again after a crash. The token secret is random.
type Tokens struct {
	// Target is a client of the target cluster. Reads of Secrets must not come from a cache. Required.
	Target client.Client
	// Installation distinguishes the managers of one target cluster.
	Installation string
	// Groups are the additional groups of the token's user, separated by commas. If empty, the user is only in
	// the group of all bootstrap tokens.
	Groups string
	// Clock is used for the validity of tokens. Required.
	Clock clock.PassiveClock

	// memory saves reads, and keeps the secret of a token that is being renewed. It is lost on restart.
	memory expectations.Memory[atomic.Pointer[known]]
}

// known is the known token of a machine. The token is nil if the machine has none.
type known struct{ token *corev1.Secret }

const namespace = "kube-system"

// attempts is how many IDs are tried for a machine, because the IDs of two machines may collide.
const attempts = 4

// The parts of a token.
const (
	characters   = "0123456789abcdefghijklmnopqrstuvwxyz"
	idLength     = 6
	secretLength = 16
)

// UserPrefix precedes the id of a bootstrap token in the name of the user that it authenticates.
const UserPrefix = "system:bootstrap:"

// IDs returns the IDs that the machine's token may have.
func (t *Tokens) IDs(machine types.NamespacedName) []string {
	ids := make([]string, attempts)
	for salt := range ids {
		ids[salt] = t.id(machine, salt)
	}
	return ids
}

// Issued reports whether a token with the given ID exists and belongs to the machine.
func (t *Tokens) Issued(ctx context.Context, machine types.NamespacedName, id string) (bool, error) {
	token := &corev1.Secret{}
	err := t.Target.Get(ctx, types.NamespacedName{Namespace: namespace, Name: secretName(id)}, token)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading the bootstrap token of machine %s: %w", machine, err)
	}
	return err == nil && t.isOf(token, machine), nil
}

// Issue returns a token for the machine as "id.secret" that is valid for at least half the given time. If an
// existing token expires sooner, it is renewed with the same ID and secret, because the VM may already have
// them.
func (t *Tokens) Issue(ctx context.Context, machine types.NamespacedName, valid time.Duration) (string, error) {
	secret := strings.ToLower(rand.Text())[:secretLength]
	if token, _ := t.recall(machine); token != nil {
		secret = string(token.Data["token-secret"])
	} else {
		t.Forget(machine) // a token may exist from now on, even if the response is lost
	}
	for salt := range attempts {
		token := t.newToken(machine, t.id(machine, salt), secret, valid)
		err := t.Target.Create(ctx, token)
		if err == nil {
			t.remember(machine, token)
			return text(token), nil
		}
		if !apierror.Taken(err) {
			return "", fmt.Errorf("creating the bootstrap token of machine %s: %w", machine, err)
		}
		existing, err := t.read(ctx, machine, salt)
		switch {
		case err != nil:
			return "", fmt.Errorf("reading the bootstrap token of machine %s: %w", machine, err)
		case !t.isOf(existing, machine):
			continue
		}
		t.remember(machine, existing)
		if left := t.left(existing); left > 0 && left >= valid/2 {
			return text(existing), nil
		}
		if err := t.renew(ctx, machine, existing, valid); err != nil {
			return "", err
		}
		return text(existing), nil
	}
	return "", fmt.Errorf("no free bootstrap token ID for machine %s after %d attempts", machine, attempts)
}

// Keep renews the token of a machine that has not joined yet, once it is valid for less than half the given
// time. It returns when to call Keep again, or zero if the machine has no token. It sends no request for a
// token that is known to be valid.
func (t *Tokens) Keep(ctx context.Context, machine types.NamespacedName, valid time.Duration) (time.Duration, error) {
	token, isKnown := t.recall(machine)
	if !isKnown {
		found, err := t.find(ctx, machine)
		if err != nil {
			return 0, err
		}
		t.remember(machine, found)
		token = found
	}
	if token == nil {
		return 0, nil
	}
	if left := t.left(token) - valid/2; left > 0 {
		return left, nil
	}
	if err := t.renew(ctx, machine, token, valid); err != nil {
		return 0, err
	}
	return valid / 2, nil
}

// Revoke deletes the machine's token, if it exists. It sends no request if the machine is known to have none.
func (t *Tokens) Revoke(ctx context.Context, machine types.NamespacedName) error {
	token, isKnown := t.recall(machine)
	if token != nil {
		err := t.delete(ctx, machine, token)
		if err == nil {
			t.remember(machine, nil)
		}
		if !apierror.Conflict(err) {
			return err
		}
		isKnown = false // another process renewed it
	}
	if isKnown {
		return nil
	}
	t.Forget(machine)
	token, err := t.find(ctx, machine)
	if err == nil && token != nil {
		err = t.delete(ctx, machine, token)
	}
	if err == nil {
		t.remember(machine, nil)
	}
	return err
}

// Forget drops the remembered token of the machine.
func (t *Tokens) Forget(machine types.NamespacedName) { t.memory.Forget(machine) }

// recall returns the machine's token, or nil if it has none, and whether this is known.
func (t *Tokens) recall(machine types.NamespacedName) (*corev1.Secret, bool) {
	if memory := t.memory.Find(machine); memory != nil {
		if is := memory.Load(); is != nil {
			return is.token, true
		}
	}
	return nil, false
}

func (t *Tokens) remember(machine types.NamespacedName, token *corev1.Secret) {
	t.memory.Of(machine).Store(&known{token})
}

// find reads the machine's token. It returns nil if there is none. It tries all IDs, because another token that
// used the first ID may have been deleted since.
func (t *Tokens) find(ctx context.Context, machine types.NamespacedName) (*corev1.Secret, error) {
	for salt := range attempts {
		existing, err := t.read(ctx, machine, salt)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("reading the bootstrap token of machine %s: %w", machine, err)
		case t.isOf(existing, machine):
			return existing, nil
		}
	}
	return nil, nil
}

func (t *Tokens) read(ctx context.Context, machine types.NamespacedName, salt int) (*corev1.Secret, error) {
	existing := &corev1.Secret{}
	key := types.NamespacedName{Namespace: namespace, Name: secretName(t.id(machine, salt))}
	return existing, t.Target.Get(ctx, key, existing)
}

// left returns how long a token remains valid, or zero if it has no valid expiration.
func (t *Tokens) left(token *corev1.Secret) time.Duration {
	expiration, err := time.Parse(time.RFC3339, string(token.Data["expiration"]))
	if err != nil {
		return 0
	}
	return expiration.Sub(t.Clock.Now())
}

// delete deletes exactly this token. It fails with a conflict if another token has its name.
func (t *Tokens) delete(ctx context.Context, machine types.NamespacedName, token *corev1.Secret) error {
	err := apierror.IgnoreGone(t.Target.Delete(ctx, token, client.Preconditions{UID: &token.UID}))
	if err == nil {
		return nil
	}
	return fmt.Errorf("deleting the bootstrap token of machine %s: %w", machine, err)
}

// renew replaces a token with one that has the same ID and secret. MCM's role does not allow updates of
// Secrets, so the token is deleted and created again.
func (t *Tokens) renew(ctx context.Context, machine types.NamespacedName, token *corev1.Secret, valid time.Duration) error {
	if err := t.delete(ctx, machine, token); err != nil {
		if apierror.Conflict(err) {
			t.Forget(machine) // another process renewed it; the next call finds the new one
		}
		return err
	}
	renewed := t.newToken(machine, string(token.Data["token-id"]), string(token.Data["token-secret"]), valid)
	if err := t.Target.Create(ctx, renewed); err != nil {
		return fmt.Errorf("renewing the bootstrap token of machine %s: %w", machine, err)
	}
	t.remember(machine, renewed)
	return nil
}

func (t *Tokens) newToken(machine types.NamespacedName, id, secret string, valid time.Duration) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secretName(id)},
		Type:       corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			"description":                    []byte(t.description(machine)),
			"token-id":                       []byte(id),
			"token-secret":                   []byte(secret),
			"expiration":                     []byte(t.Clock.Now().Add(valid).UTC().Format(time.RFC3339)),
			"usage-bootstrap-authentication": []byte("true"),
			"usage-bootstrap-signing":        []byte("true"),
			"auth-extra-groups":              []byte(t.Groups),
		},
	}
}

// isOf reports whether a token was issued to the machine. A Secret without the format of a token does not
// qualify, because its contents would be copied to the machine's user data.
func (t *Tokens) isOf(token *corev1.Secret, machine types.NamespacedName) bool {
	id, secret := token.Data["token-id"], token.Data["token-secret"]
	return string(token.Data["description"]) == t.description(machine) && token.Type == corev1.SecretTypeBootstrapToken &&
		token.Name == secretName(string(id)) && isPart(id, idLength) && isPart(secret, secretLength)
}

// isPart reports whether a text has the format of a part of a token.
func isPart(text []byte, length int) bool {
	return len(text) == length && len(bytes.Trim(text, characters)) == 0
}

func (t *Tokens) description(machine types.NamespacedName) string {
	return fmt.Sprintf("Bootstrap token of machine %s, installation %q", machine, t.Installation)
}

func (t *Tokens) id(machine types.NamespacedName, salt int) string {
	sum := sha256.Sum256([]byte(t.Installation + "\x00" + machine.String() + "\x00" + strconv.Itoa(salt)))
	number := binary.BigEndian.Uint64(sum[:])
	id := make([]byte, idLength)
	for i := range id {
		id[i] = characters[number%uint64(len(characters))]
		number /= uint64(len(characters))
	}
	return string(id)
}

func secretName(id string) string { return "bootstrap-token-" + id }

func text(token *corev1.Secret) string {
	return string(token.Data["token-id"]) + "." + string(token.Data["token-secret"])
}

// UserDataKey is the key of the user data in a class's Secret.
const UserDataKey = "userData"
