package sim

// PlanJoin lets tests plan a join from an outdated VM. This happens when Start reads the cloud while a VM is being
// created.
func (d *Driver) PlanJoin(v VM) { d.kubelets.planJoin(v) }
