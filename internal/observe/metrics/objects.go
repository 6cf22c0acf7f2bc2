package metrics

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
)

// described contains all metrics that are read from objects, by name. MCM's names have no prefix
// here; our own have theirs.
var described = map[string]*prometheus.Desc{}

// own is the prefix of metrics that MCM does not have.
const own = "millwright_"

func describe(name, help string, labels ...string) *prometheus.Desc {
	full := name
	if !strings.HasPrefix(name, own) {
		full = "mcm_" + name
	}
	described[name] = prometheus.NewDesc(full, help, labels, nil)
	return described[name]
}

var (
	frozen          = describe("machine_controller_frozen", "Whether timeouts are suspended because the control or target API server is unreachable: 1 yes, 0 no.")
	machineItems    = describe("machine_items_total", "Number of machines.")
	setItems        = describe("machine_set_items_total", "Number of machine sets.")
	deploymentItems = describe("machine_deployment_items_total", "Number of machine deployments.")
)

func init() {
	for _, rows := range [][]row{machineRows(&v1alpha1.Machine{}), setRows(&v1alpha1.MachineSet{}), deploymentRows(&v1alpha1.MachineDeployment{})} {
		for _, row := range rows {
			describe(row.name, row.help, append([]string{"name", "namespace"}, row.labels...)...)
		}
	}
}

func ofSetsOrDeployments(name string) bool {
	name = strings.TrimPrefix(name, own)
	return strings.HasPrefix(name, "machine_set_") || strings.HasPrefix(name, "machine_deployment_")
}

// row is a metric with its values for one object. Its labels follow the name and namespace of the
// object.
type row struct {
	name, help string
	labels     []string
	samples    []sample
}

type sample struct {
	value  float64
	labels []string
}

func number(value int32) []sample { return []sample{{value: float64(value)}} }

func optional(value *int32) []sample {
	if value == nil {
		return nil
	}
	return number(*value)
}

// info returns the sample of a metric that is always 1.
func info(labels ...string) []sample { return []sample{{1, labels}} }

var ofCondition = []string{"condition"}

func conditions[C any](list []C, of func(C) (kind, status string)) []sample {
	var all []sample
	for _, condition := range list {
		kind, status := of(condition)
		value, known := map[string]float64{string(corev1.ConditionTrue): 1, string(corev1.ConditionFalse): 0}[status]
		if !known {
			value = 2
		}
		all = append(all, sample{value, []string{kind}})
	}
	return all
}

var ofFailed = []string{
	"failed_machine_name", "failed_machine_provider_id", "failed_machine_owner_ref",
	"failed_machine_last_operation_state", "failed_machine_last_operation_machine_operation_type",
}

func failed(m *v1alpha1.MachineSummary) sample {
	return sample{1, []string{m.Name, m.ProviderID, m.OwnerRef, string(m.LastOperation.State), string(m.LastOperation.Type)}}
}

// phases maps phases to metric values. All other phases are 0.
var phases = map[v1alpha1.MachinePhase]int32{
	v1alpha1.MachineTerminating: -4, v1alpha1.MachineFailed: -3, v1alpha1.MachineCrashLoopBackOff: -2,
	v1alpha1.MachineUnknown: -1, v1alpha1.MachineRunning: 1,
}

func machineRows(m *v1alpha1.Machine) []row {
	class := m.Spec.Class
	return []row{
		{"machine_current_status_phase", "Phase of a machine: -4 Terminating, -3 Failed, -2 CrashLoopBackOff, -1 Unknown, 1 Running, 0 all others.", nil, number(phases[m.Status.CurrentStatus.Phase])},
		{
			"machine_info", "A machine, always 1.",
			[]string{"createdAt", "spec_provider_id", "spec_class_api_group", "spec_class_kind", "spec_class_name", "node_name"},
			info(created(m), m.Spec.ProviderID, class.APIGroup, class.Kind, class.Name, m.NodeName()),
		},
		{"machine_status_condition", "Condition of a machine's node: 1 True, 0 False, 2 Unknown.", ofCondition, conditions(m.Status.Conditions,
			func(c corev1.NodeCondition) (kind, status string) { return string(c.Type), string(c.Status) })},
	}
}

func setRows(set *v1alpha1.MachineSet) []row {
	class := set.Spec.MachineClass // empty in new objects
	if class == (v1alpha1.ClassSpec{}) {
		class = set.Spec.Template.Spec.Class
	}
	var broken []sample
	for i := 0; set.Status.FailedMachines != nil && i < len(*set.Status.FailedMachines); i++ {
		broken = append(broken, failed(&(*set.Status.FailedMachines)[i]))
	}
	return []row{
		{
			"machine_set_info", "A machine set, always 1.",
			[]string{"createdAt", "spec_machine_class_api_group", "spec_machine_class_kind", "spec_machine_class_name"},
			info(created(set), class.APIGroup, class.Kind, class.Name),
		},
		{"machine_set_info_spec_replicas", "Desired number of machines of a set.", nil, number(set.Spec.Replicas)},
		{"machine_set_info_spec_min_ready_seconds", "Seconds for which a machine of a set must be ready to count as available.", nil, number(set.Spec.MinReadySeconds)},
		{"machine_set_status_condition", "Condition of a machine set: 1 True, 0 False, 2 Unknown.", ofCondition, conditions(set.Status.Conditions,
			func(c v1alpha1.MachineSetCondition) (kind, status string) { return string(c.Type), string(c.Status) })},
		{"machine_set_failed_machines", "A machine of a set whose last operation failed, always 1.", ofFailed, broken},
		{"machine_set_status_available_replicas", "Number of available machines of a set.", nil, number(set.Status.AvailableReplicas)},
		{"machine_set_status_fully_labelled_replicas", "Number of machines of a set that have all labels of its template.", nil, number(set.Status.FullyLabeledReplicas)},
		{"machine_set_status_ready_replicas", "Number of ready machines of a set.", nil, number(set.Status.ReadyReplicas)},
		{"machine_set_status_replicas", "Number of machines of a set.", nil, number(set.Status.Replicas)},
	}
}

func deploymentRows(d *v1alpha1.MachineDeployment) []row {
	var rollback, surge, unavailable, asked, excess, broken []sample
	if d.Spec.RollbackTo != nil {
		rollback = []sample{{value: float64(d.Spec.RollbackTo.Revision)}}
	}
	if rolling := d.Spec.Strategy.RollingUpdate; rolling != nil {
		surge, unavailable = bound(d, rolling.MaxSurge, true), bound(d, rolling.MaxUnavailable, false)
	}
	if reserve.Setting(d) != nil || d.Status.ExcessReplicas != 0 {
		asked, excess = number(reserve.Requested(d)), number(d.Status.ExcessReplicas)
	}
	for _, m := range d.Status.FailedMachines {
		if m != nil {
			broken = append(broken, failed(m))
		}
	}
	return []row{
		{"machine_deployment_info", "A machine deployment, always 1.", []string{"createdAt", "spec_strategy_type"}, info(created(d), string(d.Spec.Strategy.Type))},
		{"machine_deployment_info_spec_paused", "Whether a deployment is paused: 1 yes, 0 no.", nil, []sample{{value: one(d.Spec.Paused)}}},
		{"machine_deployment_info_spec_replicas", "Desired number of machines of a deployment.", nil, number(d.Spec.Replicas)},
		{"machine_deployment_info_spec_min_ready_seconds", "Seconds for which a machine of a deployment must be ready to count as available.", nil, number(d.Spec.MinReadySeconds)},
		{"machine_deployment_info_spec_rolling_update_max_surge", "Maximum number of machines above the desired number during a rolling update.", nil, surge},
		{"machine_deployment_info_spec_rolling_update_max_unavailable", "Maximum number of desired machines that may be unavailable during a rolling update.", nil, unavailable},
		{"machine_deployment_info_spec_revision_history_limit", "Number of old machine sets that are kept.", nil, optional(d.Spec.RevisionHistoryLimit)},
		{"machine_deployment_info_spec_progress_deadline_seconds", "Seconds without progress after which a rollout has exceeded its deadline.", nil, optional(d.Spec.ProgressDeadlineSeconds)},
		{"machine_deployment_info_spec_rollback_to_revision", "Revision to roll a deployment back to.", nil, rollback},
		{"machine_deployment_status_condition", "Condition of a machine deployment: 1 True, 0 False, 2 Unknown.", ofCondition, conditions(d.Status.Conditions,
			func(c v1alpha1.MachineDeploymentCondition) (kind, status string) {
				return string(c.Type), string(c.Status)
			})},
		{"machine_deployment_failed_machines", "A machine of a deployment whose last operation failed, always 1.", ofFailed, broken},
		{"machine_deployment_status_available_replicas", "Number of available machines of a deployment.", nil, number(d.Status.AvailableReplicas)},
		{"machine_deployment_status_unavailable_replicas", "Number of desired machines of a deployment that are not available.", nil, number(d.Status.UnavailableReplicas)},
		{"machine_deployment_status_ready_replicas", "Number of ready machines of a deployment.", nil, number(d.Status.ReadyReplicas)},
		{"machine_deployment_status_updated_replicas", "Number of machines of a deployment that have its current template.", nil, number(d.Status.UpdatedReplicas)},
		{"machine_deployment_status_collision_count", "Number of name collisions of new machine sets.", nil, optional(d.Status.CollisionCount)},
		{"machine_deployment_status_replicas", "Number of machines of a deployment.", nil, number(d.Status.Replicas)},
		{own + "machine_deployment_spec_excess_replicas", "Number of machines in excess of its replicas that a deployment requests.", nil, asked},
		{own + "machine_deployment_status_excess_replicas", "Number of machines of a deployment in excess of its replicas.", nil, excess},
	}
}

// bound returns a limit of a rolling update as a number of machines, or no sample if the limit is
// invalid.
func bound(d *v1alpha1.MachineDeployment, bound *intstr.IntOrString, up bool) []sample {
	if bound == nil {
		return nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(bound, int(d.Spec.Replicas), up)
	if err != nil {
		return nil
	}
	return []sample{{value: float64(n)}}
}

func created(object metav1.Object) string {
	return strconv.FormatInt(object.GetCreationTimestamp().Unix(), 10)
}
