// Package controller is a hypervisor's client of the VM controller.
//
// A [Lease] keeps the one stream of run authorizations open and knows the last answer;
// a [Reporter] repeats what the hypervisor does until the controller has confirmed it.
// Neither ever fails, and neither decides anything: a controller that is away for any
// time is a normal case for both.
package controller
