package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
)

// LabelReplica is the label of the Leases of replicas. Its value is the same for replicas that serve the same namespaces, so
// that several fleets can use one namespace.
const LabelReplica = Prefix + "replica"

// keepDead is how long the Lease of a replica that does not renew it is kept.
const keepDead = time.Hour

// replicas knows the replicas of the fleet that are alive. Each has a Lease in the namespace of the fleet. It only determines
// which replica tries to serve which namespace: the leases in the namespace itself prevent that two of them do.
type replicas struct {
	leases coordinationclient.LeaseInterface
	// self is the name of the Lease of this replica, and fleet is the value of LabelReplica.
	self, fleet string
	// period is the time between two renewals, and timeout the time after which a replica without a renewal is not alive.
	period, timeout time.Duration
	log             logr.Logger

	seen map[string]seen
}

// seen is when a Lease was seen to change, by the clock of this process. Clocks of other hosts may differ.
type seen struct {
	renewed metav1.MicroTime
	at      time.Time
}

// follow renews the Lease of this replica and calls changed with the names of the replicas that are alive, including this
// one, whenever they change. It returns when ctx is canceled.
func (r *replicas) follow(ctx context.Context, changed func(alive []string)) {
	r.seen = map[string]seen{}
	var last []string
	for ctx.Err() == nil {
		switch alive, err := r.once(ctx); {
		case err != nil && ctx.Err() == nil:
			// The other replicas are not considered dead because this one cannot reach the API server.
			r.log.Error(err, "cannot renew the lease of this replica; the division of namespaces among replicas stays as it is")
			clear(r.seen)
			if last == nil {
				last = []string{r.self}
				changed(last)
			}
		case err == nil && !slices.Equal(alive, last):
			last = alive
			changed(alive)
		}
		select {
		case <-time.After(r.period):
		case <-ctx.Done():
		}
	}
}

// once renews the Lease of this replica and returns the sorted names of the replicas that are alive.
func (r *replicas) once(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if err := r.renew(ctx); err != nil {
		return nil, err
	}
	list, err := r.leases.List(ctx, metav1.ListOptions{LabelSelector: LabelReplica + "=" + r.fleet})
	if err != nil {
		return nil, fmt.Errorf("listing the leases of replicas: %w", err)
	}
	alive, now := []string{r.self}, time.Now()
	for i := range list.Items {
		lease := &list.Items[i]
		if lease.Name == r.self {
			continue
		}
		known, ok := r.seen[lease.Name]
		if renewed := ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}); !ok || !known.renewed.Equal(&renewed) {
			known = seen{renewed, now}
			r.seen[lease.Name] = known
		}
		switch age := now.Sub(known.at); {
		case age < r.timeout:
			alive = append(alive, lease.Name)
		case age > keepDead:
			_ = r.leases.Delete(ctx, lease.Name, metav1.DeleteOptions{Preconditions: metav1.NewRVDeletionPrecondition(lease.ResourceVersion).Preconditions}) // retried
		}
	}
	slices.Sort(alive)
	return alive, nil
}

// renew creates or renews the Lease of this replica.
func (r *replicas) renew(ctx context.Context) error {
	now := metav1.NowMicro()
	spec := coordinationv1.LeaseSpec{HolderIdentity: &r.self, LeaseDurationSeconds: ptr.To(int32(r.timeout.Seconds())), RenewTime: &now}
	lease, err := r.leases.Get(ctx, r.self, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = r.leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: r.self, Labels: map[string]string{LabelReplica: r.fleet}}, Spec: spec}, metav1.CreateOptions{})
	case err == nil:
		lease.Spec = spec
		_, err = r.leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renewing the lease of this replica: %w", err)
	}
	return nil
}

// leave deletes the Lease of this replica, so that the others begin to stand by for its namespaces.
func (r *replicas) leave(ctx context.Context) {
	if err := r.leases.Delete(ctx, r.self, metav1.DeleteOptions{}); err != nil {
		r.log.Error(err, "cannot delete the lease of this replica; the other replicas wait until it expires")
	}
}

// ownerOf returns the replica that serves a namespace. When a replica joins or leaves, only its own namespaces move.
func ownerOf(namespace string, alive []string) string {
	var owner string
	var highest uint64
	for _, replica := range alive {
		digest := sha256.Sum256([]byte(replica + "/" + namespace))
		if weight := binary.BigEndian.Uint64(digest[:8]); owner == "" || weight > highest {
			owner, highest = replica, weight
		}
	}
	return owner
}
