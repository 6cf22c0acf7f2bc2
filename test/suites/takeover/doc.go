// Package takeover replaces MCM by our manager, both in the middle of the operations of a recorded MCM fleet and
// from the beginning. In the latter case, it compares our writes with MCM's.
package takeover
