// Package dns tests the DNS of "millwright up --guest full" in a real control plane without guests: what happens
// to its Pods, which no kubelet runs, when nodes are added and removed.
package dns
