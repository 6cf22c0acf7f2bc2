// Package e2e contains scenarios with nodes that run Pods: a service in real containers, on real kubelets, in
// virtual machines of "millwright up --guest full". "make test-e2e" runs them. "make test" does not, because
// without KVM each node takes minutes of CPU time.
package e2e
