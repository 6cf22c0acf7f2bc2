// Package takeover puts our manager in the place of MCM: in the middle of what a recorded
// fleet of MCM did, and from the start, where what we write is compared with what MCM wrote.
package takeover
