// Package dns holds a test of the DNS of "millwright up --guest full" in a real control plane, without any
// guest: what becomes of its Pods, which no kubelet runs, when nodes come and go.
package dns
