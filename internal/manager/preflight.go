package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// controlTimeout is how long the control cluster may take to respond to a request.
const controlTimeout = 10 * time.Second

// kinds are the resources that the control cluster must serve for APIMCM.
var kinds = []string{"machineclasses", "machinedeployments", "machines", "machinesets"}

// awaitControl waits until the control cluster responds, and checks that it serves the resources.
func awaitControl(ctx context.Context, log logr.Logger, config *rest.Config, resources ...string) error {
	return awaitServer(ctx, log, config, v1alpha1.SchemeGroupVersion, resources...)
}

// awaitServer is like awaitControl, for resources of any API group.
func awaitServer(ctx context.Context, log logr.Logger, config *rest.Config, of schema.GroupVersion, resources ...string) error {
	client, err := discoverer(config)
	if err != nil {
		return err
	}
	last := waiting{log: log, server: config.Host}.until(ctx, func() error { return core.Serves(client, of, resources...) })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(last, core.ErrNotServed):
		return fmt.Errorf("control cluster at %s: %w; install the CRDs (kubectl apply -f config/crd)", config.Host, last)
	case last != nil:
		return fmt.Errorf("control cluster at %s denies access to the user of the kubeconfig: %w", config.Host, last)
	}
	return nil
}

// discoverer returns a client that discovers the resources of the control cluster.
func discoverer(config *rest.Config) (*discovery.DiscoveryClient, error) {
	config = rest.CopyConfig(config)
	config.Timeout = controlTimeout // also limits the time to read a response
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("control cluster: %w", err)
	}
	return client, nil
}

// waiting waits for the control cluster, which may start after the manager.
type waiting struct {
	log    logr.Logger
	server string
}

const (
	// pollInterval is the time between two requests.
	pollInterval = 500 * time.Millisecond
	// logInterval is the time between two log lines.
	logInterval = 5 * time.Second
	// rolesTimeout is how long a starting API server may reject all requests because it has not read the roles yet.
	rolesTimeout = 5 * time.Second
)

// until sends a request until it succeeds or fails in a way that a retry cannot change. It returns the
// request's error, or the error of the context if that is canceled first.
func (w waiting) until(ctx context.Context, ask func() error) error {
	var last error
	var logged time.Time
	var roles rolesWait
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		last = interruptibly(ctx, ask)
		if last == nil || roles.isFinal(last) || ctx.Err() != nil {
			return true, ctx.Err()
		}
		if time.Since(logged) >= logInterval {
			logged = time.Now()
			w.log.Info("waiting for the API server of the control cluster", "server", w.server, "err", last.Error())
		}
		return false, nil
	})
	return cmp.Or(err, last)
}

// interruptibly sends a request that ignores the context, such as those of a discovery client, and stops
// waiting for it when the context is canceled.
func interruptibly(ctx context.Context, ask func() error) error {
	result := make(chan error, 1)
	go func() { result <- ask() }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retry sends a request to the control cluster until it succeeds or fails in a way that a retry cannot change,
// but for no longer than controlTimeout. It returns the last error. Without it, a single failed request would
// terminate a manager that is starting.
func retry(ctx context.Context, ask func() error) error {
	var last error
	var roles rolesWait
	// The error of the last request is more useful than the timeout.
	_ = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, controlTimeout, true, func(context.Context) (bool, error) {
		last = ask()
		return last == nil || roles.isFinal(last), nil
	})
	if last == nil {
		return ctx.Err()
	}
	return last
}

// rolesWait limits the wait for the roles of a starting API server. The wait begins with the first rejection.
type rolesWait struct{ since time.Time }

// isFinal reports whether retries of a request are useless. After a rejection, they are useless if all requests have been
// rejected for rolesTimeout.
func (w *rolesWait) isFinal(err error) bool {
	if !apierrors.IsForbidden(err) {
		w.since = time.Time{}
		return errors.Is(err, core.ErrNotServed) || meta.IsNoMatchError(err) || apierrors.IsUnauthorized(err)
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	return time.Since(w.since) > rolesTimeout
}
