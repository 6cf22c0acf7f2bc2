package rotation

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// Intervals between reads of the Secret.
const (
	idleInterval   = time.Minute
	activeInterval = 10 * time.Second
)

// Reasons of events about the Secret.
const (
	reasonStarted  = "AuthorityRotationStarted"
	reasonChanged  = "AuthorityRotated"
	reasonRetired  = "AuthorityRetired"
	reasonInvalid  = "AuthorityInvalid"
	reasonRestored = "AuthorityRestored"
)

// Phase is the phase of a rotation.
type Phase string

const (
	// PhaseNone means that no rotation is in progress.
	PhaseNone Phase = "None"
	// PhaseDistributing means that hypervisors learn to trust the next authority.
	PhaseDistributing Phase = "Distributing"
	// PhaseRetiring means that the new authority issues certificates, and that the previous one is still trusted.
	PhaseRetiring Phase = "Retiring"
)

// State is the state of a rotation.
type State struct {
	// Phase is the current phase. Empty means that this process does not lead.
	Phase Phase
	// Pending is the number of hypervisors that do not trust the next authority yet.
	Pending int
	// Expires is when the certificate of the authority that issues certificates expires.
	Expires time.Time
}

// Options configure a Rotation. All fields are required.
type Options struct {
	// Client accesses the Secret. It must read from the API server.
	Client client.Client
	// Pods reads Pods from the cache of the VM controller.
	Pods client.Reader
	// Namespace is the namespace of the Secret.
	Namespace string
	// Authority is the authority that Load has returned. It follows the Secret.
	Authority *identity.Authority
	// Events sends events about the Secret.
	Events record.EventRecorder
	// Clock returns the current time.
	Clock clock.PassiveClock
}

// Rotation replaces the authority. Create one with New, and add it to the manager of the VM controller.
type Rotation struct {
	Options

	mu    sync.Mutex
	state State
	// last is the last valid Secret.
	last *corev1.Secret
	// since is when this process began to distribute the next authority, and distributing is its certificate.
	since        time.Time
	distributing []byte
	problem      string // the last problem for which there was an event
}

// New returns a Rotation.
func New(opts Options) *Rotation { return &Rotation{Options: opts} }

// State returns the current state. It is safe for concurrent use.
func (r *Rotation) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *Rotation) NeedLeaderElection() bool { return true }

// Start rotates the authority when it is requested or due, until the context is canceled.
func (r *Rotation) Start(ctx context.Context) error {
	for reloaded := false; ; {
		var err error
		if !reloaded { // a step ignores an authority that this process does not know
			err = r.Reload(ctx)
			reloaded = err == nil
		}
		if reloaded {
			err = r.Step(ctx)
		}
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).WithName("authority").Error(err, "cannot check the certificate authority; retrying")
		}
		interval := idleInterval
		if r.State().Phase == PhaseDistributing {
			interval = activeInterval
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			r.mu.Lock()
			r.state = State{}
			r.mu.Unlock()
			return nil
		}
	}
}

// Reload reads the authority again. Call it when this process has become the leader, before it serves hypervisors and
// before it creates Pods: another process may have rotated the authority since Load.
func (r *Rotation) Reload(ctx context.Context) error {
	// If the Secret was deleted, running hypervisors still trust the authority that this process knows.
	known := func() (*identity.Authority, error) { return r.Authority, nil }
	authority, err := load(ctx, r.Client, r.Namespace, known)
	if err != nil {
		return err
	}
	r.Authority.Replace(authority)
	return nil
}

// Step reads the Secret, and makes the next change that is due. Start calls it repeatedly. It must not be called
// concurrently.
func (r *Rotation) Step(ctx context.Context) error {
	secret, err := r.read(ctx)
	if err != nil {
		return err
	}
	parsed, err := r.parse(secret)
	if err != nil {
		return err
	}
	r.Authority.Replace(parsed.authority())
	found, err := r.observe(ctx, parsed)
	if err != nil {
		return err
	}
	next, message := plan(parsed, found)
	changed, err := apply(secret, parsed, next, message, found.now)
	if err != nil {
		return err
	}
	if !changed {
		r.keep(secret, parsed, found)
		return nil
	}
	key := client.ObjectKeyFromObject(secret)
	// The update fails if the Secret has changed since it was read. The next step then begins with the new content.
	if err := r.Client.Update(ctx, secret); err != nil {
		return fmt.Errorf("writing secret %s: %w", key, err)
	}
	if parsed, err = parse(secret); err != nil {
		return fmt.Errorf("reading secret %s after writing it: %w", key, err)
	}
	r.Authority.Replace(parsed.authority())
	r.keep(secret, parsed, found)
	r.announce(secret, parsed, next)
	return nil
}

// read reads the Secret. If it was deleted, read restores it.
func (r *Rotation) read(ctx context.Context) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.Namespace, Name: podspec.AuthoritySecret}
	err := r.Client.Get(ctx, key, secret)
	if err == nil {
		return secret, nil
	}
	if !apierror.Gone(err) || r.last == nil {
		return nil, fmt.Errorf("reading secret %s: %w", key, err)
	}
	restored := copyOf(r.last)
	if err := r.Client.Create(ctx, restored); err != nil && !apierror.Taken(err) {
		return nil, fmt.Errorf("restoring secret %s, which was deleted: %w", key, err)
	}
	if err := r.Client.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("reading secret %s after restoring it: %w", key, err)
	}
	r.Events.Eventf(secret, corev1.EventTypeWarning, reasonRestored, "The secret was deleted. It was created again with the authority that hypervisors trust.")
	return secret, nil
}

// parse parses the Secret. It returns an error, and emits an event once, if a part of the Secret is invalid, or if
// hypervisors do not trust its authority. This process then continues with what it knows.
func (r *Rotation) parse(secret *corev1.Secret) (content, error) {
	parsed, err := parse(secret)
	if err == nil && !bytes.Contains(r.Authority.Bundle(), identity.EncodeCertificate(parsed.current.Certificate())) {
		err = fmt.Errorf("%s is an authority that running hypervisors do not trust; restore the previous one, and add the new one as %s and %s",
			corev1.TLSCertKey, keyNextCert, keyNextKey)
	}
	if err == nil {
		r.problem = ""
		return parsed, nil
	}
	if problem := err.Error(); problem != r.problem {
		r.problem = problem
		r.Events.Event(secret, corev1.EventTypeWarning, reasonInvalid, "The content of the secret is ignored: "+problem)
	}
	return content{}, fmt.Errorf("secret %s/%s: %w", secret.Namespace, secret.Name, err)
}

// observe returns the facts for a decision.
func (r *Rotation) observe(ctx context.Context, c content) (facts, error) {
	found := facts{now: r.Clock.Now()}
	if c.next == nil {
		r.distributing = nil
	} else if raw := c.next.Certificate().Raw; !bytes.Equal(r.distributing, raw) || r.since.After(found.now) {
		r.distributing, r.since = raw, found.now
	}
	found.distributed = found.now.Sub(r.since)
	pods := &corev1.PodList{}
	if err := r.Pods.List(ctx, pods, client.HasLabels{v1alpha1.LabelVM}, client.UnsafeDisableDeepCopy); err != nil {
		return facts{}, fmt.Errorf("listing the pods of hypervisors: %w", err)
	}
	known := map[identity.Peer]bool{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !r.follows(pod, c) {
			continue
		}
		peer := identity.Peer{Namespace: pod.Namespace, VM: pod.Labels[v1alpha1.LabelVM], Pod: pod.Name}
		known[peer] = true
		if c.next != nil && !trusts(pod, c.next) && !r.Authority.TrustedBy(peer, c.next.Certificate()) {
			found.pending = append(found.pending, pod.Namespace+"/"+pod.Name)
		}
	}
	r.Authority.Forget(func(peer identity.Peer) bool { return known[peer] })
	found.total = len(known)
	slices.Sort(found.pending)
	return found, nil
}

// follows reports whether a Pod has, or may still start, a hypervisor that trusts one of the authorities in the
// Secret. Others get their certificates elsewhere, or belong to another VM controller.
func (r *Rotation) follows(pod *corev1.Pod, c content) bool {
	if podstate.Owner(pod) == "" || podstate.Finished(pod) {
		return false
	}
	trusted := []byte(podspec.TrustedAuthorities(pod))
	return trusts(pod, c.current) || c.next != nil && trusts(pod, c.next) ||
		c.previous != nil && bytes.Contains(trusted, identity.EncodeCertificate(c.previous))
}

// trusts reports whether the hypervisor in a Pod trusts an authority since its start.
func trusts(pod *corev1.Pod, authority *identity.Authority) bool {
	return bytes.Contains([]byte(podspec.TrustedAuthorities(pod)), identity.EncodeCertificate(authority.Certificate()))
}

// keep remembers the state after a step.
func (r *Rotation) keep(secret *corev1.Secret, c content, found facts) {
	r.last = secret
	state := State{Phase: PhaseNone, Expires: c.current.Certificate().NotAfter}
	switch {
	case c.previous != nil:
		state.Phase = PhaseRetiring
	case c.next != nil:
		state.Phase, state.Pending = PhaseDistributing, len(found.pending)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = state
}

// announce emits an event about a change.
func (r *Rotation) announce(secret *corev1.Secret, c content, done action) {
	switch done {
	case begin:
		r.Events.Eventf(secret, corev1.EventTypeNormal, reasonStarted, "The next authority, valid until %s, is distributed to hypervisors. It issues certificates when all of them trust it.",
			c.next.Certificate().NotAfter.UTC().Format(time.DateOnly))
	case change:
		r.Events.Eventf(secret, corev1.EventTypeNormal, reasonChanged, "The new authority issues certificates. The previous one is trusted until %s.",
			c.switchedAt.Add(retirement).UTC().Format(time.RFC3339))
	case retire:
		r.Events.Event(secret, corev1.EventTypeNormal, reasonRetired, "The previous authority is not trusted anymore. The rotation is complete.")
	}
}
