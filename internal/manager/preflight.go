package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// controlPatience is how long the control cluster may take to answer at the start, as
// in MCM.
const controlPatience = 10 * time.Second

// kinds are the resources that the control cluster must serve for the API mcm.
var kinds = []string{"machineclasses", "machinedeployments", "machines", "machinesets"}

// awaitControl waits until the control cluster answers, and checks that it serves the resources.
func awaitControl(ctx context.Context, config *rest.Config, resources ...string) error {
	config = rest.CopyConfig(config)
	config.Timeout = controlPatience // also for an answer that never ends
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("control cluster: %w", err)
	}
	last := patiently(ctx, func() error { return core.Serves(client, v1alpha1.SchemeGroupVersion, resources...) })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(last, core.ErrNotServed):
		return fmt.Errorf("control cluster at %s: %w: install the CRDs (kubectl apply -f config/crd)", config.Host, last)
	case last != nil && isFinal(last):
		return fmt.Errorf("control cluster at %s refuses the user of the kubeconfig: %w", config.Host, last)
	case last != nil:
		return fmt.Errorf("control cluster at %s does not answer: %w", config.Host, last)
	}
	return nil
}

// patiently asks the control cluster until it answers, or until asking again cannot change the answer,
// and returns the last error. Without it, a single failed request would end a manager that starts.
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
