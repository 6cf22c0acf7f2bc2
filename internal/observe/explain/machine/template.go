package machine

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// nodeTemplate says what the node should have and has not.
func (e *explainer) nodeTemplate() {
	n := e.Target.Node
	if n == nil {
		return
	}
	for _, wrong := range noderef.Invalid(n, e.Machine) {
		e.Why(templateInvalid, "Node "+n.Name, time.Time{}, "{node}", n.Name, "{text}", wrong, "{template}", e.template())
	}
	if e.Target.Copied {
		return
	}
	if lacking := noderef.Lacks(n, e.Machine); len(lacking) > 0 {
		e.notApplied("NodeTemplateRefused", strings.Join(lacking, " and ")+" of Node "+n.Name+" are not as spec.nodeTemplate says", "spec.nodeTemplate "+e.template())
	}
	class := e.Inputs.Class
	if class == nil || class.NodeTemplate == nil {
		return
	}
	for name, want := range class.NodeTemplate.VirtualCapacity {
		if has, ok := n.Status.Capacity[name]; !ok || has.Cmp(want) != 0 {
			e.notApplied("VirtualCapacityRefused", "the capacity of Node "+n.Name+" is not as nodeTemplate.virtualCapacity of the class says",
				"nodeTemplate.virtualCapacity of MachineClass "+class.Name)
			return
		}
	}
}

// notApplied says what is not as it should be, and why if the manager has an event of a reason.
func (e *explainer) notApplied(reason, what, source string) {
	node := "Node " + e.Target.Node.Name
	event := e.Facts.Events.Newest("Machine", func(event *corev1.Event) bool { return e.own(event) }, reason)
	if event == nil {
		e.Why(templateLate, node, time.Time{}, "{what}", what)
		return
	}
	e.Why(templateRefused, node, report.Time(event), "{what}", what, "{text}", event.Message, "{source}", source)
}

// template says where the node template is to be corrected.
func (e *explainer) template() string {
	switch {
	case e.Owners.Deployment != nil:
		return "in the template of MachineDeployment " + e.Owners.Deployment.Name
	case e.Owners.Set != nil:
		return "in the template of MachineSet " + e.Owners.Set.Name
	default:
		return "of the machine"
	}
}
