package planner

// Replaced is replaced, for simulations.
var Replaced = replaced
