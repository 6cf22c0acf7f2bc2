package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// controlPatience is how long the control cluster may take to answer at the start, as
// in MCM.
const controlPatience = 10 * time.Second

// kinds are the resources that the control cluster must serve.
var kinds = []string{"machineclasses", "machinedeployments", "machines", "machinesets"}

// awaitControl waits until the control cluster answers, and checks that it serves the
// resources that are needed: all of our kinds, if none are named.
func awaitControl(ctx context.Context, config *rest.Config, needed ...string) error {
	if len(needed) == 0 {
		needed = kinds
	}
	config = rest.CopyConfig(config)
	config.Timeout = controlPatience // also for an answer that never ends
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("control cluster: %w", err)
	}
	var resources *metav1.APIResourceList
	var last error
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, controlPatience, true, func(context.Context) (bool, error) {
		resources, last = client.ServerResourcesForGroupVersion(v1alpha1.SchemeGroupVersion.String())
		return last == nil || final(last), nil
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsNotFound(last):
		return missingKinds(config, needed)
	case last != nil && final(last):
		return fmt.Errorf("control cluster at %s refuses the user of the kubeconfig: %w", config.Host, last)
	case err != nil || last != nil:
		return fmt.Errorf("control cluster at %s does not answer: %w", config.Host, last)
	}
	if missing := missingFrom(resources, needed); len(missing) > 0 {
		return missingKinds(config, missing)
	}
	return nil
}

func missingFrom(served *metav1.APIResourceList, needed []string) []string {
	return slices.DeleteFunc(slices.Clone(needed), func(kind string) bool {
		return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == kind })
	})
}

// final reports whether asking again cannot change the answer.
func final(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)
}

func missingKinds(config *rest.Config, missing []string) error {
	return fmt.Errorf("control cluster at %s does not serve %s of %s: install the CRDs (kubectl apply -f config/crd)",
		config.Host, strings.Join(missing, ", "), v1alpha1.SchemeGroupVersion)
}
