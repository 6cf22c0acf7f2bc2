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

// awaitControl waits until the control cluster answers, and checks that it serves our
// kinds.
func awaitControl(ctx context.Context, config *rest.Config) error {
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
		return ctx.Err() //nolint:wrapcheck // the user asked for it
	case apierrors.IsNotFound(last):
		return missingKinds(config, kinds)
	case err != nil || last != nil:
		return fmt.Errorf("control cluster at %s does not answer: %w", config.Host, last)
	}
	var missing []string
	for _, kind := range kinds {
		if !slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == kind }) {
			missing = append(missing, kind)
		}
	}
	if len(missing) > 0 {
		return missingKinds(config, missing)
	}
	return nil
}

// final tells whether asking again cannot change the answer.
func final(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)
}

func missingKinds(config *rest.Config, missing []string) error {
	return fmt.Errorf("control cluster at %s does not serve %s of %s: install the CRDs (kubectl apply -f config/crd)",
		config.Host, strings.Join(missing, ", "), v1alpha1.SchemeGroupVersion)
}
