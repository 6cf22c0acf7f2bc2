// Package fake is a driver for unit tests, with its VMs in memory.
//
// A [Driver] keeps to the contract of package driver as it is: creation is idempotent, a VM's
// ID is never used twice, and what is deleted is gone. A test then makes it misbehave:
//
//	d := fake.New(fake.Config{})
//	d.Fail(fake.CreateMachine, codes.ResourceExhausted, codes.OK)  // the first call fails
//	d.FailAfter(fake.DeleteMachine, codes.DeadlineExceeded)        // the answer gets lost
//	d.OnCreate(func(ctx context.Context, req *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
//		return nil, nil // an answer that no driver should give
//	})
//	block := d.Block(fake.GetMachineStatus)                        // calls wait
//	<-block.Entered()
//	block.Release()
//
// Afterwards it says what happened: [Driver.Calls] and [Requests] are the calls, [Driver.VMs]
// what is left of them.
//
// A VM belongs to the class that it was made from, by the class's namespace and name: other
// classes neither find nor delete it. API groups are not kept apart: a fake is a driver that
// knows nothing of them. One without optional methods is struct{ driver.Driver }{d}.
//
// For a provider with delays, nodes that join and capacity, and for VMs that outlive a
// process, there is package sim.
package fake
