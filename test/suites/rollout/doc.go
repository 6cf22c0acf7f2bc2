// Package rollout tests what users see of "millwright rollout": the program, with a manager and
// simulated machines, against a real API server.
package rollout
