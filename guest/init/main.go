// Command init is the guest's only program: the kernel starts it as process 1. If it
// ends, the kernel panics and the machine restarts.
package main

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/guest/agent"
	"github.com/millwright-dev/millwright/guest/console"
	"github.com/millwright-dev/millwright/guest/credential"
	"github.com/millwright-dev/millwright/guest/join"
	"github.com/millwright-dev/millwright/guest/metadata"
	"github.com/millwright-dev/millwright/guest/userdata"
)

// rootDisk is the first disk; the hypervisor attaches the root disk before the seed.
const rootDisk = "/dev/vda"

func main() {
	out := console.NewOutput(os.Stdout, uptime)
	machine := &machine{out: out}
	rawTerminal(os.Stdin)
	if err := mountAll(); err != nil {
		out.Logf("boot: %v", err)
	}
	if err := loadModules(); err != nil {
		out.Logf("boot: %v", err)
	}
	out.Logf("boot: kernel %s", kernelRelease())

	guest := &guest{machine: machine, out: out}
	shell := console.NewShell(out, console.Actions{
		Status: guest.status, PowerOff: machine.powerOff, Reboot: machine.reboot, Panic: machine.panic,
	})
	go func() {
		out.Logf("console: it ended: %v", shell.Serve(os.Stdin))
	}()
	go machine.watchPowerButton()
	go serveAgent(&agent.Agent{
		PowerOff: machine.powerOff, Reboot: machine.reboot, Interfaces: agent.SystemInterfaces,
	}, out)

	guest.join(context.Background())
	select {} // without a cluster, the console still answers
}

// uptime is the time since boot.
func uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

// guest is what this program knows of the machine that it runs on.
type guest struct {
	machine *machine
	out     *console.Output
	name    text
	network text
	node    text
}

// join sets the network up, reads the user data and joins; it returns only if that is
// not possible.
func (g *guest) join(ctx context.Context) {
	described, err := readMetadata()
	if err != nil {
		g.out.Logf("metadata: %v", err)
		return
	}
	g.name.set(described.Name)
	if err := g.connect(described.Links); err != nil {
		g.out.Logf("network: %v", err)
		return
	}
	data, err := readUserData(userdata.Machine{Name: described.Name, UUID: systemUUID()})
	if err != nil {
		g.out.Logf("seed: %v", err)
		return
	}
	g.out.Logf("seed: to join %s as node %s", data.Server, data.NodeName)
	g.node.set(data.NodeName)
	joiner := join.Joiner{
		Data: data, Machine: describe(described.Links), Store: credential.Store{Path: rootDisk}, Logf: g.out.Logf,
	}
	if err := joiner.Run(ctx); err != nil {
		g.out.Logf("join: %v", err)
	}
}

// describe is what the Node tells of the machine.
func describe(links []metadata.Link) join.Machine {
	uuid := systemUUID()
	m := join.Machine{
		CPUs: processors(), MemoryKiB: memoryKiB(), BootID: bootID(), UUID: uuid, MachineID: machineID(uuid),
		Kernel: kernelRelease(),
	}
	for _, link := range links {
		m.Addresses = append(m.Addresses, link.Address.String())
	}
	return m
}
