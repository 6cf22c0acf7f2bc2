package cluster

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// statusPatch is a patch of the status of a MillwrightCluster with an optimistic lock. Its failure domains have the
// format of Cluster API's contract.
type statusPatch struct {
	before *infrav1.MillwrightCluster
	// asMap selects the format of contract v1beta1.
	asMap bool
	// rewrite includes failure domains that did not change, because they may be stored in the other format.
	rewrite bool
}

// Type implements client.Patch.
func (p statusPatch) Type() types.PatchType { return types.MergePatchType }

// Data implements client.Patch.
func (p statusPatch) Data(object client.Object) ([]byte, error) {
	data, err := expectations.Locked(p.before).Data(object)
	if err != nil {
		return nil, fmt.Errorf("comparing the status of MillwrightCluster %s: %w", p.before.Name, err)
	}
	before, after := p.before.Status.FailureDomains, object.(*infrav1.MillwrightCluster).Status.FailureDomains
	changed := !equality.Semantic.DeepEqual(before, after)
	if !p.rewrite && !(p.asMap && changed) {
		return data, nil
	}
	patch := map[string]any{}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, fmt.Errorf("comparing the status of MillwrightCluster %s: %w", p.before.Name, err)
	}
	status, _ := patch["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
		patch["status"] = status
	}
	status["failureDomains"] = after
	if p.asMap {
		status["failureDomains"] = byName(before, after)
	}
	return json.Marshal(patch)
}

// byName returns a merge patch of a map of failure domains by their names. It contains all of them, since the API server
// may have stored a list.
func byName(before, after []infrav1.FailureDomain) map[string]any {
	patch, was := map[string]any{}, map[string]infrav1.FailureDomain{}
	for _, domain := range before {
		patch[domain.Name], was[domain.Name] = nil, domain
	}
	for _, domain := range after {
		attributes := map[string]any{}
		for key := range was[domain.Name].Attributes {
			attributes[key] = nil
		}
		for key, value := range domain.Attributes {
			attributes[key] = value
		}
		patch[domain.Name] = map[string]any{"controlPlane": domain.ControlPlane, "attributes": attributes}
	}
	return patch
}
