package explain

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// nodeTemplate says what the node should have and has not.
func (e *explainer) nodeTemplate() {
	n := e.Target.Node
	if n == nil {
		return
	}
	for _, wrong := range noderef.Invalid(n, e.Machine) {
		e.why(NodeTemplate, "Node "+n.Name, time.Time{}, "Node %s is not as spec.nodeTemplate says: %s", n.Name, wrong)
		e.remedy("Correct spec.nodeTemplate %s. Nodes that exist get it at once", e.templateOf())
	}
	if e.Target.Copied {
		return
	}
	if lacking := noderef.Lacks(n, e.Machine); len(lacking) > 0 {
		e.refusedOnNode("NodeTemplateRefused", strings.Join(lacking, " and ")+" of Node "+n.Name+" are not as spec.nodeTemplate says", "spec.nodeTemplate "+e.templateOf())
	}
	e.virtualCapacity(n)
}

func (e *explainer) virtualCapacity(n *corev1.Node) {
	class := e.Material.Class
	if class == nil || class.NodeTemplate == nil {
		return
	}
	for name, want := range class.NodeTemplate.VirtualCapacity {
		if has, ok := n.Status.Capacity[name]; !ok || has.Cmp(want) != 0 {
			e.refusedOnNode("VirtualCapacityRefused", "the capacity of Node "+n.Name+" is not as nodeTemplate.virtualCapacity of the class says",
				"nodeTemplate.virtualCapacity of MachineClass "+class.Name)
			return
		}
	}
}

// refusedOnNode says what is not as it should be, and why if the manager told.
func (e *explainer) refusedOnNode(reason, what, source string) {
	event := e.last("Machine", []string{reason}, e.mine)
	if event == nil {
		e.why(NodeTemplate, "Node "+e.Target.Node.Name, time.Time{}, "%s yet", what)
		return
	}
	e.why(NodeTemplate, "Node "+e.Target.Node.Name, timeOf(event), "%s. %s", what, event.Message)
	e.remedy("Look at policies and webhooks for nodes in the target cluster, or correct %s. The manager tries again at least every 10m", source)
}

// templateOf says where the node template is to be corrected.
func (e *explainer) templateOf() string {
	switch {
	case e.Owners.Deployment != nil:
		return "in the template of MachineDeployment " + e.Owners.Deployment.Name
	case e.Owners.Set != nil:
		return "in the template of MachineSet " + e.Owners.Set.Name
	default:
		return "of the machine"
	}
}
