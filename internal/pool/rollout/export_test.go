package rollout

// Replaced is replaced, for simulations.
var Replaced = replaced
