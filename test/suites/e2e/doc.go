// Package e2e holds stories with nodes that run Pods: a service in real containers, on real kubelets, in
// virtual machines of "millwright up --guest full". "make test-e2e" runs them; "make test" does not, since
// without KVM each node takes minutes of processor time.
package e2e
