package rollout

// Replaced returns replaced, for simulations.
func Replaced(r *Rollout) bool { return r.replaced }
