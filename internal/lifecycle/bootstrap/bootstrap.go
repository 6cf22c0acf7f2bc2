// Package bootstrap gives new machines what they need to join a cluster: a bootstrap
// token of their own, and user data that carries it.
package bootstrap

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Tokens issues and revokes the bootstrap tokens of machines. Each is a Secret in the
// namespace kube-system of the target cluster, of the form that Kubernetes' bootstrap
// token authenticator reads. Its id follows from the machine, so that a token is found
// again after a crash; its secret is random.
type Tokens struct {
	// Target cluster. Secrets must not be read from a cache: a token is created first,
	// and read only if that says that it exists. Required.
	Target client.Client
	// Installation tells several managers of one target cluster apart.
	Installation string
	// Groups, separated by commas, to which the token's bearer belongs; empty for the
	// one that every bearer belongs to.
	Groups string
	// Clock to count validity by. Required.
	Clock clock.PassiveClock

	// issued holds the tokens that this process has issued, by machine, so that most
	// of them can be deleted without being read, and none gets another secret. A restart
	// forgets them.
	issued sync.Map
	// none holds the machines of which it was found out that they have no token.
	none sync.Map
}

const namespace = "kube-system"

// attempts is how many ids are tried for one machine. Two that collide are rare, four
// are not to be met.
const attempts = 4

// The parts of a token are made of these characters.
const (
	characters   = "0123456789abcdefghijklmnopqrstuvwxyz"
	idLength     = 6
	secretLength = 16
)

// Issue returns a token for the machine that is valid for at least half the given
// time, as "id.secret". It makes one that is valid for all of it, unless there is one
// already; one that ends too soon is renewed under the same id and secret, since the
// VM may have them.
func (t *Tokens) Issue(ctx context.Context, machine types.NamespacedName, valid time.Duration) (string, error) {
	t.none.Delete(machine)
	secret := t.secretOf(machine)
	for salt := range attempts {
		token := t.secretFor(machine, salt, secret, valid)
		err := t.Target.Create(ctx, token)
		if err == nil {
			t.issued.Store(machine, token)
			return text(token), nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("creating the bootstrap token of machine %s: %w", machine, err)
		}
		existing, err := t.read(ctx, machine, salt)
		if err != nil {
			return "", fmt.Errorf("reading the bootstrap token of machine %s: %w", machine, err)
		}
		if t.isOf(existing, machine) {
			return t.renew(ctx, machine, existing, valid)
		}
	}
	return "", fmt.Errorf("no bootstrap token id is free for machine %s after %d attempts", machine, attempts)
}

// Keep sees to it that the token of a machine whose VM has it already stays valid while
// the VM is awaited: it renews a token that is valid for less than half the given time.
// It answers when to be called again. A token that is known to be valid costs no request,
// and one that is gone is made again only if this process knows its secret.
func (t *Tokens) Keep(ctx context.Context, machine types.NamespacedName, valid time.Duration) (time.Duration, error) {
	token, err := t.current(ctx, machine)
	if err != nil {
		return 0, err
	}
	if token == nil {
		return 0, nil
	}
	if left := t.left(token) - valid/2; left > 0 {
		return left, nil
	}
	if err := t.delete(ctx, machine, token); err != nil {
		if apierrors.IsConflict(err) {
			t.issued.Delete(machine) // another process has renewed it: look for that one
		}
		return 0, err
	}
	if _, err := t.makeAnew(ctx, machine, token, valid); err != nil {
		return 0, err
	}
	return valid / 2, nil
}

// current finds the machine's token; nil if there is none.
func (t *Tokens) current(ctx context.Context, machine types.NamespacedName) (*corev1.Secret, error) {
	if known, ok := t.issued.Load(machine); ok {
		return known.(*corev1.Secret), nil
	}
	if _, none := t.none.Load(machine); none {
		return nil, nil
	}
	for salt := range attempts {
		existing, err := t.read(ctx, machine, salt)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("reading the bootstrap token of machine %s: %w", machine, err)
		case t.isOf(existing, machine):
			t.issued.Store(machine, existing)
			return existing, nil
		}
	}
	t.none.Store(machine, nil)
	return nil, nil
}

// left is how long a token is valid; nothing if it does not say.
func (t *Tokens) left(token *corev1.Secret) time.Duration {
	ends, err := time.Parse(time.RFC3339, string(token.Data["expiration"]))
	if err != nil {
		return 0
	}
	return ends.Sub(t.Clock.Now())
}

// secretOf is the secret part of a token that is to be made: the one that the machine
// had before, if this process knows it, since the VM may have it.
func (t *Tokens) secretOf(machine types.NamespacedName) string {
	if known, ok := t.issued.Load(machine); ok {
		return string(known.(*corev1.Secret).Data["token-secret"])
	}
	return randomSecret()
}

// Revoke deletes the machine's token, if there is one.
func (t *Tokens) Revoke(ctx context.Context, machine types.NamespacedName) error {
	t.none.Delete(machine)
	if known, ok := t.issued.Load(machine); ok {
		// A conflict means that another process has renewed it: then it is looked for.
		if err := t.delete(ctx, machine, known.(*corev1.Secret)); !apierrors.IsConflict(err) {
			if err == nil {
				t.issued.Delete(machine)
			}
			return err
		}
		t.issued.Delete(machine)
	}
	for salt := range attempts {
		existing, err := t.read(ctx, machine, salt)
		if apierrors.IsNotFound(err) {
			continue // whose token took this id may be gone by now, and ours under the next
		}
		if err != nil {
			return fmt.Errorf("reading the bootstrap token of machine %s: %w", machine, err)
		}
		if t.isOf(existing, machine) {
			return t.delete(ctx, machine, existing)
		}
	}
	return nil
}

// delete removes exactly this token, and is refused with a conflict if another one has
// its name by now.
func (t *Tokens) delete(ctx context.Context, machine types.NamespacedName, token *corev1.Secret) error {
	err := t.Target.Delete(ctx, token, client.Preconditions{UID: &token.UID})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("deleting the bootstrap token of machine %s: %w", machine, err)
}

func (t *Tokens) read(ctx context.Context, machine types.NamespacedName, salt int) (*corev1.Secret, error) {
	existing := &corev1.Secret{}
	key := types.NamespacedName{Namespace: namespace, Name: secretName(t.id(machine, salt))}
	return existing, t.Target.Get(ctx, key, existing)
}

// isOf tells whose token it is: ids may collide.
func (t *Tokens) isOf(token *corev1.Secret, machine types.NamespacedName) bool {
	return string(token.Data["description"]) == t.description(machine)
}

// renew returns the token as it is if it is valid for long enough, and else makes it
// anew. MCM's role may not update Secrets, hence the way by deletion.
func (t *Tokens) renew(ctx context.Context, machine types.NamespacedName, token *corev1.Secret, valid time.Duration) (string, error) {
	t.issued.Store(machine, token) // so that its secret is not lost between deletion and creation
	if left := t.left(token); left > 0 && left >= valid/2 {
		return text(token), nil
	}
	if err := t.delete(ctx, machine, token); err != nil {
		return "", err
	}
	return t.makeAnew(ctx, machine, token, valid)
}

// makeAnew makes a token that is gone, with the id and secret that it had.
func (t *Tokens) makeAnew(ctx context.Context, machine types.NamespacedName, token *corev1.Secret, valid time.Duration) (string, error) {
	renewed := t.withData(token.Name, string(token.Data["token-id"]), string(token.Data["token-secret"]), machine, valid)
	if err := t.Target.Create(ctx, renewed); err != nil {
		return "", fmt.Errorf("renewing the bootstrap token of machine %s: %w", machine, err)
	}
	t.issued.Store(machine, renewed)
	return text(renewed), nil
}

func (t *Tokens) secretFor(machine types.NamespacedName, salt int, secret string, valid time.Duration) *corev1.Secret {
	id := t.id(machine, salt)
	return t.withData(secretName(id), id, secret, machine, valid)
}

func (t *Tokens) withData(name, id, secret string, machine types.NamespacedName, valid time.Duration) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
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

func (t *Tokens) description(machine types.NamespacedName) string {
	return fmt.Sprintf("Bootstrap token of machine %s, installation %q", machine, t.Installation)
}

// id follows from the machine.
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

// randomSecret favours no character: bytes beyond the last whole round are dropped.
func randomSecret() string {
	const fair = 256 - 256%len(characters)
	secret := make([]byte, 0, secretLength)
	for buffer := make([]byte, 1); len(secret) < secretLength; {
		_, _ = rand.Read(buffer) // never fails
		if int(buffer[0]) < fair {
			secret = append(secret, characters[int(buffer[0])%len(characters)])
		}
	}
	return string(secret)
}

// The placeholders in user data. Each may also stand there escaped for a URL query.
const (
	PlaceholderToken       = "<<BOOTSTRAP_TOKEN>>"
	PlaceholderMachineName = "<<MACHINE_NAME>>"
)

// UserDataKey is the key of a class's Secret that holds the user data.
const UserDataKey = "userData"

// Render fills the placeholders of user data. The plain form of a placeholder wins:
// only where it is absent is the escaped form looked for, and filled with the escaped
// value. An empty token leaves its placeholder as it is.
func Render(userData []byte, machineName, token string) []byte {
	userData = replace(userData, PlaceholderMachineName, machineName)
	if token == "" {
		return userData
	}
	return replace(userData, PlaceholderToken, token)
}

func replace(data []byte, placeholder, value string) []byte {
	if bytes.Contains(data, []byte(placeholder)) {
		return bytes.ReplaceAll(data, []byte(placeholder), []byte(value))
	}
	return bytes.ReplaceAll(data, []byte(url.QueryEscape(placeholder)), []byte(url.QueryEscape(value)))
}
