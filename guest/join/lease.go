package join

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/millwright-dev/millwright/guest/kube"
)

const (
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	// leaseSeconds is a kubelet's.
	leaseSeconds = 40
	// microTime is the form of a Lease's times.
	microTime = "2006-01-02T15:04:05.000000Z07:00"
)

type leaseSpec struct {
	Holder  string `json:"holderIdentity"`
	Seconds int    `json:"leaseDurationSeconds"`
	Renewed string `json:"renewTime"`
}

// lease is the Node's heartbeat.
type lease struct {
	client *kube.Client
	node   *node
	// version of the Lease that we wrote last. Empty: not known.
	version string
}

// renew writes the Lease, which it makes if there is none.
func (l *lease) renew(ctx context.Context, now time.Time) error {
	if l.version == "" {
		return l.begin(ctx, now)
	}
	err := l.write(ctx, now)
	if kube.IsStatus(err, http.StatusConflict) || kube.IsStatus(err, http.StatusNotFound) {
		return l.begin(ctx, now)
	}
	return err
}

// begin makes the Lease, or takes over the one that is there.
func (l *lease) begin(ctx context.Context, now time.Time) error {
	l.version = ""
	var there object
	err := l.client.Get(ctx, l.path(), &there)
	switch {
	case err == nil:
		l.version = there.Metadata.ResourceVersion
		return l.write(ctx, now)
	case !kube.IsStatus(err, http.StatusNotFound):
		return fmt.Errorf("reading the lease: %w", err)
	}
	// The garbage collector deletes the lease of a node that is not there.
	if err := l.client.Get(ctx, l.node.path(), nil); err != nil {
		return fmt.Errorf("reading the node: %w", err)
	}
	var created object
	if err := l.client.Post(ctx, leasesPath, l.object(now), &created); err != nil {
		return fmt.Errorf("creating the lease: %w", err)
	}
	l.version = created.Metadata.ResourceVersion
	return nil
}

func (l *lease) write(ctx context.Context, now time.Time) error {
	var written object
	if err := l.client.Put(ctx, l.path(), l.object(now), &written); err != nil {
		return fmt.Errorf("renewing the lease: %w", err)
	}
	l.version = written.Metadata.ResourceVersion
	return nil
}

func (l *lease) path() string { return leasesPath + "/" + url.PathEscape(l.node.data.NodeName) }

func (l *lease) object(now time.Time) object {
	name := l.node.data.NodeName
	return object{
		APIVersion: "coordination.k8s.io/v1", Kind: "Lease",
		Metadata: metadata{
			Name: name, ResourceVersion: l.version,
			Owners: []owner{{APIVersion: "v1", Kind: "Node", Name: name, UID: l.node.uid}},
		},
		Spec: leaseSpec{Holder: name, Seconds: leaseSeconds, Renewed: now.UTC().Format(microTime)},
	}
}
