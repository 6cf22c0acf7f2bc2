package planner

import ()

// Replaced is replaced, for simulations.
var Replaced = replaced
