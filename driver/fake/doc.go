// Package fake is a driver for unit tests, with its VMs in memory.
//
// A new [Driver] complies with the contract of package driver: creation is idempotent, a VM's ID
// is never used twice, and a deleted VM is gone. A test can make it misbehave:
//
//	d := fake.New(fake.Config{})
//	d.Fail(fake.CreateMachine, codes.ResourceExhausted, codes.OK)  // the first call fails
//	d.FailAfter(fake.DeleteMachine, codes.DeadlineExceeded)        // the answer is lost
//	d.OnCreate(func(ctx context.Context, req *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
//		return nil, nil // an answer that no driver should give
//	})
//	block := d.Block(fake.GetMachineStatus)                        // calls wait
//	<-block.Entered()
//	block.Release()
//
// [Driver.Calls] and [Requests] return the calls, [Driver.VMs] the VMs that exist.
//
// A VM belongs to the class that it was created from, by the class's namespace and name: other
// classes neither find nor delete it. A driver without optional methods is struct{ driver.Driver }{d}.
//
// Package sim simulates delays, nodes that join and capacity, and VMs that outlive a process.
package fake
