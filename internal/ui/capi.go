package ui

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Names of the watched kinds of Cluster API. Its kinds have the same names as those of machine.sapcloud.io.
const (
	capiDeployments = "Cluster API MachineDeployment"
	capiSets        = "Cluster API MachineSet"
	capiMachines    = "Cluster API Machine"
)

// The kinds of the rows of Cluster API's objects. The rows have the same fields as those of machine.sapcloud.io.
const (
	capiPoolRow    = "capi-pool"
	capiSetRow     = "capi-set"
	capiMachineRow = "capi-machine"
)

const (
	capiGroup = "cluster.x-k8s.io"
	// capiRevision is the annotation of a MachineSet with its revision. It is higher than those of all earlier sets.
	capiRevision = "machinedeployment.clusters.x-k8s.io/revision"
	// capiTopologyOwned is the label of objects whose spec is derived from a Cluster's topology.
	capiTopologyOwned = "topology.cluster.x-k8s.io/owned"
)

// capiVersions are the API versions that can be read, the preferred one first.
var capiVersions = []string{"v1beta2", "v1beta1"}

// ClusterAPIKind returns the version of a kind of cluster.x-k8s.io that the page reads. If the cluster does not serve the
// kind, meta.IsNoMatchError reports true for the error.
func ClusterAPIKind(mapper meta.RESTMapper, kind string) (schema.GroupVersionKind, error) {
	of := schema.GroupKind{Group: capiGroup, Kind: kind}
	served, err := mapper.RESTMappings(of)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	for _, version := range capiVersions {
		if slices.ContainsFunc(served, func(m *meta.RESTMapping) bool { return m.GroupVersionKind.Version == version }) {
			return of.WithVersion(version), nil
		}
	}
	return schema.GroupVersionKind{}, &meta.NoKindMatchError{GroupKind: of, SearchedVersions: capiVersions}
}

// The following types have the fields of v1beta1 and v1beta2 of cluster.x-k8s.io that the page shows. Fields that only one
// version has are zero in the other.

// capiDeployment is a MachineDeployment.
type capiDeployment struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ClusterName string `json:"clusterName"`
		Replicas    *int32 `json:"replicas"`
		Paused      bool   `json:"paused"`
		// Strategy is the field of v1beta1, and Rollout is that of v1beta2.
		Strategy capiStrategy `json:"strategy"`
		Rollout  struct {
			Strategy capiStrategy `json:"strategy"`
		} `json:"rollout"`
		Template capiTemplate `json:"template"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64 `json:"observedGeneration"`
		Replicas           int32 `json:"replicas"`
		ReadyReplicas      int32 `json:"readyReplicas"`
		AvailableReplicas  int32 `json:"availableReplicas"`
		// UpdatedReplicas is the field of v1beta1, and UpToDateReplicas is that of v1beta2.
		UpdatedReplicas  int32 `json:"updatedReplicas"`
		UpToDateReplicas int32 `json:"upToDateReplicas"`
		capiConditions   `json:",inline"`
	} `json:"status"`
}

// capiStrategy is how machines are replaced.
type capiStrategy struct {
	Type          string `json:"type"`
	RollingUpdate struct {
		MaxSurge       *intstr.IntOrString `json:"maxSurge"`
		MaxUnavailable *intstr.IntOrString `json:"maxUnavailable"`
	} `json:"rollingUpdate"`
}

// capiTemplate is the template of machines.
type capiTemplate struct {
	Spec capiMachineSpec `json:"spec"`
}

// capiSet is a MachineSet.
type capiSet struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas *int32       `json:"replicas"`
		Template capiTemplate `json:"template"`
	} `json:"spec"`
	Status struct {
		ReadyReplicas     int32 `json:"readyReplicas"`
		AvailableReplicas int32 `json:"availableReplicas"`
	} `json:"status"`
}

// capiMachine is a Machine.
type capiMachine struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              capiMachineSpec `json:"spec"`
	Status            struct {
		Phase       string      `json:"phase"`
		LastUpdated metav1.Time `json:"lastUpdated"`
		NodeRef     struct {
			Name string `json:"name"`
		} `json:"nodeRef"`
		capiConditions `json:",inline"`
	} `json:"status"`
}

// capiMachineSpec is the spec of a Machine.
type capiMachineSpec struct {
	ClusterName       string        `json:"clusterName"`
	InfrastructureRef capiReference `json:"infrastructureRef"`
	Version           string        `json:"version"`
	ProviderID        string        `json:"providerID"`
	FailureDomain     string        `json:"failureDomain"`
}

// capiReference refers to an infrastructure object.
type capiReference struct {
	// APIVersion is the group and version, as in v1beta1. APIGroup is the group, as in v1beta2.
	APIVersion string `json:"apiVersion"`
	APIGroup   string `json:"apiGroup"`
	Name       string `json:"name"`
}

// isOurs reports whether Millwright provides the infrastructure.
func (r capiReference) isOurs() bool {
	group, _, _ := strings.Cut(r.APIVersion, "/")
	return r.APIGroup == infrav1.GroupName || r.APIGroup == "" && group == infrav1.GroupName
}

// capiConditions are the conditions in a status.
type capiConditions struct {
	Conditions []metav1.Condition `json:"conditions"`
	// V1Beta2 has the conditions of v1beta2 in an object of v1beta1. Earlier versions of Cluster API do not set it.
	V1Beta2 struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"v1beta2"`
}

// all returns the conditions, those of v1beta2 if there are any.
func (c capiConditions) all() []metav1.Condition {
	if len(c.V1Beta2.Conditions) > 0 {
		return c.V1Beta2.Conditions
	}
	return c.Conditions
}

// capiActivities are the conditions that are False in the normal state. All others are True in it.
var capiActivities = []string{"RollingOut", "ScalingUp", "ScalingDown", "Remediating", "Deleting", "Paused", "Updating"}

// problems returns findings about the conditions that do not have their normal value. Their causes are the types of the
// conditions.
func problems(object string, conditions []metav1.Condition, except ...string) []report.Finding {
	var found []report.Finding
	for _, condition := range conditions {
		normal := metav1.ConditionTrue
		if slices.Contains(capiActivities, condition.Type) {
			normal = metav1.ConditionFalse
		}
		if condition.Status == normal || slices.Contains(except, condition.Type) {
			continue
		}
		finding := report.Finding{Cause: report.Cause(condition.Type), Object: object, Code: condition.Reason, Text: textOf(condition), Since: condition.LastTransitionTime.Time}
		if finding.Code == finding.Text {
			finding.Code = ""
		}
		found = append(found, finding)
	}
	return found
}

// textOf returns the message of a condition, or its reason if there is no message.
func textOf(condition metav1.Condition) string {
	if text := report.Clause(messages.Line(condition.Message)); text != "" {
		return text
	}
	if condition.Reason != "" {
		return condition.Reason
	}
	return condition.Type + " is " + string(condition.Status)
}

// capiKind returns a kind of Cluster API whose objects have the type T in the cache.
func capiKind[T any](name, of string) kind {
	return kind{name: name, capi: of, convert: func(object *unstructured.Unstructured) any { return converted[T](object) }}
}

// converted returns the fields that the page shows. If they do not have the expected types, only the metadata is returned.
func converted[T any](object *unstructured.Unstructured) *T {
	into := new(T)
	if runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into) == nil {
		return into
	}
	into = new(T)
	metadata := map[string]any{"metadata": object.Object["metadata"]}
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(metadata, into) // the API server has validated it
	return into
}
