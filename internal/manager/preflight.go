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

// controlPatience is how long the control cluster may take to answer a question.
const controlPatience = 10 * time.Second

// kinds are the resources that the control cluster must serve for the API mcm.
var kinds = []string{"machineclasses", "machinedeployments", "machines", "machinesets"}

// awaitControl waits until the control cluster answers, and checks that it serves the resources.
func awaitControl(ctx context.Context, log logr.Logger, config *rest.Config, resources ...string) error {
	return awaitServer(ctx, log, config, v1alpha1.SchemeGroupVersion, resources...)
}

// awaitServer is awaitControl for resources of any group.
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
		return fmt.Errorf("control cluster at %s: %w: install the CRDs (kubectl apply -f config/crd)", config.Host, last)
	case last != nil:
		return fmt.Errorf("control cluster at %s refuses the user of the kubeconfig: %w", config.Host, last)
	}
	return nil
}

// discoverer returns a client that asks what the control cluster serves.
func discoverer(config *rest.Config) (*discovery.DiscoveryClient, error) {
	config = rest.CopyConfig(config)
	config.Timeout = controlPatience // also for an answer that never ends
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("control cluster: %w", err)
	}
	return client, nil
}

// waiting is the wait for the control cluster, which may start after the manager.
type waiting struct {
	log    logr.Logger
	server string
}

const (
	// askPeriod is the time between two questions.
	askPeriod = 500 * time.Millisecond
	// sayPeriod is the time between two lines of the log.
	sayPeriod = 5 * time.Second
)

// until asks until there is an answer that asking again cannot change, and returns its error, or that of
// the context when this ends.
func (w waiting) until(ctx context.Context, ask func() error) error {
	var last error
	var said time.Time
	err := wait.PollUntilContextCancel(ctx, askPeriod, true, func(context.Context) (bool, error) {
		last = interruptibly(ctx, ask)
		if last == nil || isFinal(last) || ctx.Err() != nil {
			return true, ctx.Err()
		}
		if time.Since(said) >= sayPeriod {
			said = time.Now()
			w.log.Info("waiting for the API server of the control cluster", "server", w.server, "err", last.Error())
		}
		return false, nil
	})
	return cmp.Or(err, last)
}

// interruptibly asks a question that the end of the context does not end, such as those of a discovery
// client.
func interruptibly(ctx context.Context, ask func() error) error {
	answer := make(chan error, 1)
	go func() { answer <- ask() }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// patiently asks the control cluster until it answers, or until asking again cannot change the answer,
// but no longer than controlPatience, and returns the last error. Without it, a single failed request
// would end a manager that starts.
func patiently(ctx context.Context, ask func() error) error {
	var last error
	// The last answer says more than that time is up.
	_ = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, controlPatience, true, func(context.Context) (bool, error) {
		last = ask()
		return last == nil || isFinal(last), nil
	})
	if last == nil {
		return ctx.Err()
	}
	return last
}

// isFinal reports whether asking again cannot change the answer.
func isFinal(err error) bool {
	return errors.Is(err, core.ErrNotServed) || meta.IsNoMatchError(err) || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)
}
