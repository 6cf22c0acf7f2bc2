// Package conformance checks that a driver follows the contract of package driver.
//
// Each normative sentence of the contract is a [Rule] with a number. A rule either has a check or states why it has
// none. In a driver's own tests:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, func(t *testing.T) conformance.Provider {
//			return conformance.Provider{Driver: New(), Class: class, Secret: secret}
//		})
//	}
//
// The name of each subtest contains the number and the title of its rule: "R17 a repeated CreateMachine finds the
// VM". [Check] does the same without package testing, for programs.
//
// # Effects at the provider
//
// The checks create machines, at most four at a time, and delete them after each rule. They touch only machines
// whose names they generate; other VMs of the class may exist. Rules that need more than a class and a Secret, such
// as a class with other parameters, are skipped unless [Variants] or [Hooks] provide it.
package conformance
