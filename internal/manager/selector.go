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

// withoutSelector is a client that does not send status.selector of sets and deployments. MCM's CRDs do not
// have the field, so an API server would drop it and respond to each write with a warning.
type withoutSelector struct{ client.Client }

// Status implements client.Client.
func (c withoutSelector) Status() client.SubResourceWriter {
	return statusWithoutSelector{c.Client.Status()}
}

type statusWithoutSelector struct{ client.SubResourceWriter }

// Patch implements client.SubResourceWriter. As usual, the object is replaced by the response of the API
// server.
func (w statusWithoutSelector) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	switch object := object.(type) {
	case *v1alpha1.MachineSet:
		object.Status.Selector = ""
	case *v1alpha1.MachineDeployment:
		object.Status.Selector = ""
	}
	return w.SubResourceWriter.Patch(ctx, object, patch, opts...)
}

// schemaTimeout is how long the API server may take to publish the schema of new CRDs.
const schemaTimeout = 5 * time.Second

// lacksSelector reports whether the CRDs of the control cluster do not have status.selector. It is determined
// once at startup. If the schema cannot be read, the CRDs are assumed to be Millwright's.
func lacksSelector(ctx context.Context, cfg Config) bool {
	config := rest.CopyConfig(cfg.Control)
	config.Timeout = controlTimeout
	client, err := discoverer(config)
	if err != nil {
		return false
	}
	var lacks bool
	err = wait.PollUntilContextTimeout(ctx, pollInterval, schemaTimeout, true, func(ctx context.Context) (bool, error) {
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

// document is the part of an OpenAPI document that is read.
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

var errNoSchema = errors.New("the API server has not published the schema of MachineSets")

// schemaLacksSelector reports whether the schema of MachineSets does not have status.selector. The schema of
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
