// Package conformance checks that a driver keeps the contract of package driver.
//
// Each normative sentence of the contract is a [Rule] with a number. A rule has a check, or says
// why there is none. In a driver's own tests:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, func(t *testing.T) conformance.Provider {
//			return conformance.Provider{Driver: New(), Class: class, Secret: secret}
//		})
//	}
//
// The name of each subtest has the number of its rule: "R23 a repeated creation finds the VM".
// [Check] does the same without package testing, for programs.
//
// # What it does at the provider
//
// The checks create machines, at most four at a time, and delete them after each rule. They touch
// only machines whose names they have made up; other VMs of the class may exist. Rules that need
// more than a class and a Secret, such as a class with other parameters, say so and are skipped
// unless [Variants] or [Hooks] have it.
package conformance
