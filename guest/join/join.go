// Package join makes the guest a Node and maintains it.
//
// Like a kubelet, it uses a bootstrap token, a certificate signing request, a Node and a Lease. It does not run
// Pods: it sets the status of Pods that are bound to its Node, and finishes their deletion.
package join

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/millwright-dev/millwright/guest/credential"
	"github.com/millwright-dev/millwright/guest/kube"
	"github.com/millwright-dev/millwright/guest/userdata"
)

// Intervals, as in the kubelet.
const (
	leaseInterval  = 10 * time.Second
	statusInterval = 5 * time.Minute
)

// Joiner makes a machine a Node. All fields are required.
type Joiner struct {
	// Data has the cluster and the Node.
	Data userdata.UserData
	// Machine is reported in the Node's status.
	Machine Machine
	// Store keeps the certificate for restarts.
	Store credential.Store
	// Logf logs a message.
	Logf func(format string, arguments ...any)
	// Restart restarts the machine, to update it in place. It returns only if that fails.
	Restart func()
}

// Run joins, and then maintains the Node until ctx is done, whose error it returns. It retries all failures.
func (j *Joiner) Run(ctx context.Context) error {
	access, err := j.stored()
	if err != nil {
		j.Logf("join: with the token: %v", err)
		access = kube.Access{}
	}
	for ctx.Err() == nil {
		if access.Server == "" {
			if access, err = j.bootstrap(ctx); err != nil {
				return err
			}
		}
		if err := j.live(ctx, access); ctx.Err() == nil {
			j.Logf("join: the certificate is not accepted, joining with the token: %v", err)
		}
		access = kube.Access{}
		if err := wait(ctx, firstPause); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// stored returns the access that an earlier boot stored on the disk. The error is why there is none.
func (j *Joiner) stored() (kube.Access, error) {
	kept, err := j.Store.Load()
	if err != nil {
		return kube.Access{}, err
	}
	if kept.NodeName != j.Data.NodeName || kept.Server != j.Data.Server {
		return kube.Access{}, fmt.Errorf("the stored certificate is for node %s of %s", kept.NodeName, kept.Server)
	}
	if ours := j.Data.CertificateAuthority; ours != "" && ours != string(kept.Authority) {
		return kube.Access{}, errors.New("the stored certificate is of another certificate authority")
	}
	pair, err := usable(kept.Certificate, kept.Key, time.Now())
	if err != nil {
		return kube.Access{}, err
	}
	j.Logf("join: with the certificate on the disk, until %s", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	return kube.Access{Server: kept.Server, Authority: kept.Authority, Certificate: pair}, nil
}

// Authority returns the certificate authorities of the cluster: those of the user data, or those found with the
// token. It retries all failures until ctx is done, whose error it then returns.
func (j *Joiner) Authority(ctx context.Context) (authority []byte, err error) {
	if given := j.Data.CertificateAuthority; given != "" {
		return []byte(given), nil
	}
	err = j.retry(ctx, func() (err error) {
		authority, err = discover(ctx, j.Data.Server, j.Data.Token)
		return err
	})
	if err == nil {
		j.Logf("join: found the cluster's certificate authority")
	}
	return authority, err
}

// bootstrap requests a certificate with the token.
func (j *Joiner) bootstrap(ctx context.Context) (access kube.Access, err error) {
	authority, err := j.Authority(ctx)
	if err != nil {
		return kube.Access{}, err
	}
	err = j.retry(ctx, func() (err error) {
		access, err = j.certify(ctx, authority)
		return err
	})
	return access, err
}

// certify requests a certificate, and stores it before its first use.
func (j *Joiner) certify(ctx context.Context, authority []byte) (kube.Access, error) {
	client, err := kube.New(kube.Access{Server: j.Data.Server, Authority: authority, Token: j.Data.Token})
	if err != nil {
		return kube.Access{}, err
	}
	defer client.Close()
	key, certificate, err := requestCertificate(ctx, client, j.Data.NodeName)
	if err != nil {
		return kube.Access{}, err
	}
	pair, err := usable(certificate, key, time.Now())
	if err != nil {
		return kube.Access{}, err
	}
	j.Logf("join: got a certificate until %s", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	err = j.Store.Save(credential.Credential{
		Key: key, Certificate: certificate, Authority: authority, Server: j.Data.Server, NodeName: j.Data.NodeName,
	})
	if err != nil {
		// The next boot needs a token that is still valid.
		j.Logf("join: the certificate is not stored: %v", err)
	}
	return kube.Access{Server: j.Data.Server, Authority: authority, Certificate: pair}, nil
}

// live registers the Node and maintains it until ctx is done or the certificate is rejected.
func (j *Joiner) live(ctx context.Context, access kube.Access) error {
	client, err := kube.New(access)
	if err != nil {
		return err
	}
	defer client.Close()
	node := &node{client: client, data: j.Data, info: j.Machine, logf: j.Logf, restart: j.Restart}
	err = j.untilRefused(ctx, func() error { return node.register(ctx, time.Now()) })
	if err != nil {
		return err
	}
	j.Logf("node %s is Ready", j.Data.NodeName)
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	background.Go(func() { j.finishPods(ctx, client) })
	return j.beat(ctx, node, &lease{client: client, node: node})
}

// finishPods follows the Node's Pods until ctx is done.
func (j *Joiner) finishPods(ctx context.Context, client *kube.Client) {
	answering := newPods(client, j.Data.NodeName, j.Logf)
	for ctx.Err() == nil {
		if j.retry(ctx, func() error { return answering.follow(ctx) }) == nil {
			_ = wait(ctx, firstPause)
		}
	}
}

// beat renews Lease and status until an error.
func (j *Joiner) beat(ctx context.Context, node *node, lease *lease) error {
	for {
		err := j.untilRefused(ctx, func() error {
			if err := lease.renew(ctx, time.Now()); err != nil {
				return err
			}
			return node.keepStatus(ctx, time.Now())
		})
		if err == nil {
			err = wait(ctx, leaseInterval)
		}
		if err != nil {
			return err
		}
	}
}

// untilRefused is like retry, but returns the error if the API server rejects the certificate.
func (j *Joiner) untilRefused(ctx context.Context, step func() error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := j.retry(ctx, func() error {
		err := step()
		if kube.IsStatus(err, http.StatusUnauthorized) {
			cancel(err)
		}
		return err
	})
	if err != nil {
		return context.Cause(ctx)
	}
	return nil
}

// retry repeats a step with growing pauses until it succeeds or ctx is done, whose error it then returns. It
// logs a failure that differs from the last one.
func (j *Joiner) retry(ctx context.Context, step func() error) error {
	var pauses backoff
	logged := ""
	for {
		err := step()
		if err == nil {
			if logged != "" {
				j.Logf("join: it works again")
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if text := err.Error(); text != logged {
			logged = text
			j.Logf("join: %s; trying again", text)
		}
		if err := wait(ctx, pauses.next()); err != nil {
			return err
		}
	}
}

// The pauses between attempts double from the first to the longest, each reduced by up to a quarter at random,
// so that guests do not retry at the same time.
const (
	firstPause   = time.Second
	longestPause = 15 * time.Second
	jitter       = 4
)

type backoff struct{ pause time.Duration }

func (b *backoff) next() time.Duration {
	b.pause = min(max(2*b.pause, firstPause), longestPause)
	return b.pause - rand.N(b.pause/jitter)
}

// wait returns nil after the duration, or the error of ctx if that is done earlier.
func wait(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
