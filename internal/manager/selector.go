package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// withoutSelector is a client that does not send status.selector of sets and deployments. MCM's CRDs
// lack the field: an API server would drop it, and answer each write with a warning.
type withoutSelector struct{ client.Client }

// Status implements client.Client.
func (c withoutSelector) Status() client.SubResourceWriter {
	return statusWithoutSelector{c.Client.Status()}
}

type statusWithoutSelector struct{ client.SubResourceWriter }

// Patch implements client.SubResourceWriter. The object becomes what the API server returns, as ever.
func (w statusWithoutSelector) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	switch object := object.(type) {
	case *v1alpha1.MachineSet:
		object.Status.Selector = ""
	case *v1alpha1.MachineDeployment:
		object.Status.Selector = ""
	}
	return w.SubResourceWriter.Patch(ctx, object, patch, opts...)
}

// schemaPatience is how long the schema of CRDs that are new may take to be published.
const schemaPatience = 5 * time.Second

// lacksSelector reports whether the CRDs of the control cluster lack status.selector, by one request at
// the start. If their schema cannot be read, they count as ours.
func lacksSelector(ctx context.Context, cfg Config) bool {
	config := rest.CopyConfig(cfg.Control)
	config.Timeout = controlPatience
	client, err := discoverer(config)
	if err != nil {
		return false
	}
	var lacks bool
	err = wait.PollUntilContextTimeout(ctx, askPeriod, schemaPatience, true, func(ctx context.Context) (bool, error) {
		raw, err := client.RESTClient().Get().AbsPath("/openapi/v3/apis", v1alpha1.GroupName, v1alpha1.SchemeGroupVersion.Version).Do(ctx).Raw()
		if err == nil {
			lacks, err = schemaLacksSelector(raw)
		}
		if errors.Is(err, errNoSchema) || apierrors.IsNotFound(err) {
			return false, nil
		}
		return true, err
	})
	if err != nil && ctx.Err() == nil {
		cfg.Log.Info("cannot read the schema of the CRDs; if they are MCM's, the API server warns that it drops status.selector", "err", err.Error())
	}
	return lacks && err == nil
}

// document is what is read of an OpenAPI document.
type document struct {
	Components struct {
		Schemas map[string]struct {
			Kinds      []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
			Properties struct {
				Status struct {
					Properties map[string]json.RawMessage `json:"properties"`
				} `json:"status"`
			} `json:"properties"`
		} `json:"schemas"`
	} `json:"components"`
}

var errNoSchema = errors.New("the API server publishes no schema of MachineSets")

// schemaLacksSelector reports whether the schema of MachineSets lacks status.selector. That of
// MachineDeployments comes from the same installation.
func schemaLacksSelector(raw []byte) (bool, error) {
	var published document
	if err := json.Unmarshal(raw, &published); err != nil {
		return false, fmt.Errorf("reading the schema of MachineSets: %w", err)
	}
	for _, one := range published.Components.Schemas {
		for _, kind := range one.Kinds {
			if kind == v1alpha1.SchemeGroupVersion.WithKind("MachineSet") {
				_, has := one.Properties.Status.Properties["selector"]
				return !has, nil
			}
		}
	}
	return false, errNoSchema
}
