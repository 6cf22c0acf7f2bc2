package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// described are all metrics that are read off objects.
var described []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("mcm_"+name, help, labels, nil)
	described = append(described, d)
	return d
}

// named is describe for what there is one of for each object.
func named(name, help string, more ...string) *prometheus.Desc {
	return describe(name, help, append([]string{"name", "namespace"}, more...)...)
}

// broken is named for the list of failed Machines in a status.
func broken(name, help string) *prometheus.Desc {
	return named(name, help, "failed_machine_name", "failed_machine_provider_id", "failed_machine_owner_ref",
		"failed_machine_last_operation_state", "failed_machine_last_operation_machine_operation_type")
}

var (
	frozen           = describe("machine_controller_frozen", "Whether machines are left alone since an API server is away: 1 is yes.")
	machineItems     = describe("machine_items_total", "Number of machines.")
	machinePhase     = named("machine_current_status_phase", "Phase of a machine: -4 Terminating, -3 Failed, -2 CrashLoopBackOff, -1 Unknown, 1 Running, 0 all others.")
	machineInfo      = named("machine_info", "A machine, always 1.", "createdAt", "spec_provider_id", "spec_class_api_group", "spec_class_kind", "spec_class_name", "node_name")
	machineCondition = named("machine_status_condition", "Condition of a machine's node: 1 True, 0 False, 2 Unknown.", "condition")

	setItems        = describe("machine_set_items_total", "Number of machine sets.")
	setInfo         = named("machine_set_info", "A machine set, always 1.", "createdAt", "spec_machine_class_api_group", "spec_machine_class_kind", "spec_machine_class_name")
	setReplicas     = named("machine_set_info_spec_replicas", "Number of machines that a set wants.")
	setMinReady     = named("machine_set_info_spec_min_ready_seconds", "Seconds for which a machine of a set must be ready to count as available.")
	setCondition    = named("machine_set_status_condition", "Condition of a machine set: 1 True, 0 False, 2 Unknown.", "condition")
	setFailed       = broken("machine_set_failed_machines", "A machine of a set whose last operation failed, always 1.")
	setAvailable    = named("machine_set_status_available_replicas", "Number of available machines of a set.")
	setFullyLabeled = named("machine_set_status_fully_labelled_replicas", "Number of machines of a set that have all labels of its template.")
	setReady        = named("machine_set_status_ready_replicas", "Number of ready machines of a set.")
	setExisting     = named("machine_set_status_replicas", "Number of machines of a set.")

	deploymentItems          = describe("machine_deployment_items_total", "Number of machine deployments.")
	deploymentInfo           = named("machine_deployment_info", "A machine deployment, always 1.", "createdAt", "spec_strategy_type")
	deploymentPaused         = named("machine_deployment_info_spec_paused", "Whether a deployment is paused: 1 is yes.")
	deploymentReplicas       = named("machine_deployment_info_spec_replicas", "Number of machines that a deployment wants.")
	deploymentMinReady       = named("machine_deployment_info_spec_min_ready_seconds", "Seconds for which a machine of a deployment must be ready to count as available.")
	deploymentMaxSurge       = named("machine_deployment_info_spec_rolling_update_max_surge", "Number of machines beyond those wanted that a rolling update may have.")
	deploymentMaxUnavailable = named("machine_deployment_info_spec_rolling_update_max_unavailable", "Number of machines of those wanted that may be unavailable in a rolling update.")
	deploymentHistory        = named("machine_deployment_info_spec_revision_history_limit", "Number of old machine sets that are kept.")
	deploymentDeadline       = named("machine_deployment_info_spec_progress_deadline_seconds", "Seconds without progress after which a rollout is late.")
	deploymentRollback       = named("machine_deployment_info_spec_rollback_to_revision", "Revision that a deployment is to be rolled back to.")
	deploymentCondition      = named("machine_deployment_status_condition", "Condition of a machine deployment: 1 True, 0 False, 2 Unknown.", "condition")
	deploymentFailed         = broken("machine_deployment_failed_machines", "A machine of a deployment whose last operation failed, always 1.")
	deploymentAvailable      = named("machine_deployment_status_available_replicas", "Number of available machines of a deployment.")
	deploymentUnavailable    = named("machine_deployment_status_unavailable_replicas", "Number of machines of a deployment that are wanted and not available.")
	deploymentReady          = named("machine_deployment_status_ready_replicas", "Number of ready machines of a deployment.")
	deploymentUpdated        = named("machine_deployment_status_updated_replicas", "Number of machines of a deployment that have its current template.")
	deploymentCollisions     = named("machine_deployment_status_collision_count", "Number of times that the name of a new machine set was taken.")
	deploymentExisting       = named("machine_deployment_status_replicas", "Number of machines of a deployment.")
)

// phases are those with a number of their own.
var phases = map[v1alpha1.MachinePhase]float64{
	v1alpha1.MachineTerminating: -4, v1alpha1.MachineFailed: -3, v1alpha1.MachineCrashLoopBackOff: -2,
	v1alpha1.MachineUnknown: -1, v1alpha1.MachineRunning: 1,
}

func (s *scrape) machine(m *v1alpha1.Machine) {
	s.tell(machinePhase, phases[m.Status.CurrentStatus.Phase], m.Name, m.Namespace)
	class := m.Spec.Class
	s.tell(machineInfo, 1, m.Name, m.Namespace, created(m), m.Spec.ProviderID, class.APIGroup, class.Kind, class.Name, m.Labels[v1alpha1.NodeLabelKey])
	for _, c := range m.Status.Conditions {
		s.tell(machineCondition, truth(string(c.Status)), m.Name, m.Namespace, string(c.Type))
	}
}

func (s *scrape) set(set *v1alpha1.MachineSet) {
	tell := func(what *prometheus.Desc, value int32) { s.tell(what, float64(value), set.Name, set.Namespace) }
	class := set.Spec.MachineClass
	if class == (v1alpha1.ClassSpec{}) { // a left-over that nobody fills any more
		class = set.Spec.Template.Spec.Class
	}
	s.tell(setInfo, 1, set.Name, set.Namespace, created(set), class.APIGroup, class.Kind, class.Name)
	tell(setReplicas, set.Spec.Replicas)
	tell(setMinReady, set.Spec.MinReadySeconds)
	tell(setAvailable, set.Status.AvailableReplicas)
	tell(setFullyLabeled, set.Status.FullyLabeledReplicas)
	tell(setReady, set.Status.ReadyReplicas)
	tell(setExisting, set.Status.Replicas)
	for _, c := range set.Status.Conditions {
		s.tell(setCondition, truth(string(c.Status)), set.Name, set.Namespace, string(c.Type))
	}
	if set.Status.FailedMachines == nil {
		return
	}
	for i := range *set.Status.FailedMachines {
		s.failed(setFailed, set, &(*set.Status.FailedMachines)[i])
	}
}

func (s *scrape) deployment(d *v1alpha1.MachineDeployment) {
	tell := func(what *prometheus.Desc, value int32) { s.tell(what, float64(value), d.Name, d.Namespace) }
	tellIf := func(what *prometheus.Desc, value *int32) {
		if value != nil {
			tell(what, *value)
		}
	}
	s.tell(deploymentInfo, 1, d.Name, d.Namespace, created(d), string(d.Spec.Strategy.Type))
	s.tell(deploymentPaused, one(d.Spec.Paused), d.Name, d.Namespace)
	tell(deploymentReplicas, d.Spec.Replicas)
	tell(deploymentMinReady, d.Spec.MinReadySeconds)
	tellIf(deploymentHistory, d.Spec.RevisionHistoryLimit)
	tellIf(deploymentDeadline, d.Spec.ProgressDeadlineSeconds)
	if d.Spec.RollbackTo != nil {
		s.tell(deploymentRollback, float64(d.Spec.RollbackTo.Revision), d.Name, d.Namespace)
	}
	if rolling := d.Spec.Strategy.RollingUpdate; rolling != nil {
		s.bound(deploymentMaxSurge, d, rolling.MaxSurge, true)
		s.bound(deploymentMaxUnavailable, d, rolling.MaxUnavailable, false)
	}
	tell(deploymentAvailable, d.Status.AvailableReplicas)
	tell(deploymentUnavailable, d.Status.UnavailableReplicas)
	tell(deploymentReady, d.Status.ReadyReplicas)
	tell(deploymentUpdated, d.Status.UpdatedReplicas)
	tell(deploymentExisting, d.Status.Replicas)
	tellIf(deploymentCollisions, d.Status.CollisionCount)
	for _, c := range d.Status.Conditions {
		s.tell(deploymentCondition, truth(string(c.Status)), d.Name, d.Namespace, string(c.Type))
	}
	for _, failed := range d.Status.FailedMachines {
		if failed != nil {
			s.failed(deploymentFailed, d, failed)
		}
	}
}

// bound tells of a bound of a rolling update in machines, also if it is a percentage. One
// that means nothing is left out.
func (s *scrape) bound(what *prometheus.Desc, d *v1alpha1.MachineDeployment, bound *intstr.IntOrString, up bool) {
	if bound == nil {
		return
	}
	if n, err := intstr.GetScaledValueFromIntOrPercent(bound, int(d.Spec.Replicas), up); err == nil {
		s.tell(what, float64(n), d.Name, d.Namespace)
	}
}

func (s *scrape) failed(what *prometheus.Desc, of metav1.Object, m *v1alpha1.MachineSummary) {
	s.tell(what, 1, of.GetName(), of.GetNamespace(), m.Name, m.ProviderID, m.OwnerRef, string(m.LastOperation.State), string(m.LastOperation.Type))
}

// created is when an object was, in seconds since 1970.
func created(object metav1.Object) string {
	return strconv.FormatInt(object.GetCreationTimestamp().Unix(), 10)
}

func truth(status string) float64 {
	switch status {
	case string(corev1.ConditionTrue):
		return 1
	case string(corev1.ConditionFalse):
		return 0
	default:
		return 2
	}
}
