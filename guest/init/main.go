// Command init is the guest's only program, process 1. If it exits, the kernel panics and the machine restarts.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/guest/agent"
	"github.com/millwright-dev/millwright/guest/boot"
	"github.com/millwright-dev/millwright/guest/cloudconfig"
	"github.com/millwright-dev/millwright/guest/console"
	"github.com/millwright-dev/millwright/guest/credential"
	"github.com/millwright-dev/millwright/guest/join"
	"github.com/millwright-dev/millwright/guest/metadata"
	"github.com/millwright-dev/millwright/guest/network"
	"github.com/millwright-dev/millwright/guest/system"
	"github.com/millwright-dev/millwright/guest/userdata"
)

// rootDisk is the first disk; the hypervisor attaches the root disk before the seed.
const rootDisk = "/dev/vda"

func main() {
	out := console.NewOutput(os.Stdout, uptime)
	machine := &machine{out: out}
	rawTerminal(os.Stdin)
	if err := boot.Mount(); err != nil {
		out.Logf("boot: %v", err)
	}
	if err := boot.LoadModules(); err != nil {
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
	select {} // the console still responds
}

// uptime is the time since boot.
func uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

// guest is the state of the guest.
type guest struct {
	machine *machine
	out     *console.Output
	name    text
	network text
	node    text
}

// join configures the network, reads the user data and joins the cluster. It returns only if that is
// impossible.
func (g *guest) join(ctx context.Context) {
	described, err := metadata.Read()
	if err != nil {
		g.out.Logf("metadata: %v", err)
		return
	}
	g.name.set(described.Name)
	if err := g.connect(described.Links); err != nil {
		g.out.Logf("network: %v", err)
		return
	}
	content, err := readUserData()
	if err != nil {
		g.out.Logf("seed: %v", err)
		return
	}
	described.Name = cmp.Or(content.hostName, described.Name)
	if cloudconfig.Is(content.userData) && system.OnDisk(rootDisk) {
		err = g.bootstrap(ctx, content.userData, described)
	} else {
		err = g.becomeNode(ctx, content.userData, described)
	}
	if err != nil {
		g.out.Logf("%v", err)
	}
}

// becomeNode joins the cluster of the user data.
func (g *guest) becomeNode(ctx context.Context, content []byte, described metadata.Metadata) error {
	data, err := userdata.Parse(content, userdata.Machine{Name: described.Name, UUID: systemUUID()})
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	g.out.Logf("seed: to join %s as node %s", data.Server, data.NodeName)
	g.node.set(data.NodeName)
	joiner := &join.Joiner{
		Data: data, Machine: describe(described.Links), Store: credential.Store{Path: rootDisk}, Logf: g.out.Logf,
		Restart: g.machine.reboot,
	}
	become := joiner.Run
	if system.OnDisk(rootDisk) {
		become = func(ctx context.Context) error { return g.runSystem(ctx, joiner, described.Links) }
	}
	if err := become(ctx); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	return nil
}

// runSystem runs the system on the root disk, whose kubelet joins the cluster.
func (g *guest) runSystem(ctx context.Context, joiner *join.Joiner, links []metadata.Link) error {
	node, err := g.enterDisk(links)
	if err != nil {
		return err
	}
	node.Data, node.Authority = joiner.Data, joiner.Authority
	return node.Run(ctx)
}

// bootstrap runs the system on the root disk, and the commands of a #cloud-config, which make it a node.
func (g *guest) bootstrap(ctx context.Context, content []byte, described metadata.Metadata) error {
	id := systemUUID()
	config, err := cloudconfig.Parse(content, cloudconfig.Instance{ID: id, Name: described.Name})
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	node, err := g.enterDisk(described.Links)
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	if !system.CanBootstrap() {
		return errors.New("seed: it is a #cloud-config, and this guest has no kubeadm: \"make guest-kubeadm\" builds one")
	}
	g.out.Logf("seed: to set up node %s by commands", described.Name)
	g.node.set(described.Name)
	node.Data.NodeName = described.Name
	if err := (&system.Bootstrap{Node: node, Config: config, InstanceID: id}).Run(ctx); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// enterDisk makes the root disk the root, and returns the machine for the system on it.
func (g *guest) enterDisk(links []metadata.Link) (*system.Node, error) {
	if err := system.Enter(rootDisk); err != nil {
		return nil, err
	}
	g.out.Logf("boot: the system is on the root disk")
	card, err := network.Card()
	if err != nil {
		return nil, err
	}
	return &system.Node{
		Links: links, Card: card.Name, MachineID: machineID(systemUUID()), Processes: system.NewProcesses(g.out.Logf), Logf: g.out.Logf,
	}, nil
}

// describe returns the machine for the status of the Node.
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

// connect configures the network.
func (g *guest) connect(links []metadata.Link) error {
	if len(links) == 0 {
		return errors.New("the metadata has no address")
	}
	card, err := network.Card()
	if err != nil {
		return err
	}
	if err := network.Up(card); err != nil {
		return err
	}
	var ways []string
	for _, link := range links {
		if err := network.Connect(card, link.Address, link.Peer); err != nil {
			return fmt.Errorf("%s: %w", link.Address, err)
		}
		ways = append(ways, fmt.Sprintf("%s via %s", link.Address, link.Peer))
	}
	way := strings.Join(ways, ", ")
	g.network.set(way)
	g.out.Logf("network: %s", way)
	return nil
}

// seedContent is the content of the seed.
type seedContent struct {
	userData []byte
	// hostName is the name in the meta-data. It may be empty.
	hostName string
}

// The name of the seed volume, and its position in an ISO 9660 file system.
const (
	volumeNameAt     = 32768 + 40
	volumeNameLength = 32
	seedVolume       = "cidata"
	userDataFile     = "user-data"
	metaDataFile     = "meta-data"
	seedDir          = "/seed"
)

// readUserData finds the seed among the disks.
func readUserData() (seedContent, error) {
	disks, err := filepath.Glob("/dev/vd[a-z]")
	if err != nil {
		return seedContent{}, err
	}
	for _, disk := range disks {
		if !isSeed(disk) {
			continue
		}
		content, err := readSeed(disk)
		if err != nil {
			return seedContent{}, fmt.Errorf("reading %s: %w", disk, err)
		}
		return content, nil
	}
	return seedContent{}, errors.New("there is no volume " + seedVolume + ", so there is nothing to join")
}

func isSeed(disk string) bool {
	file, err := os.Open(disk)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	name := make([]byte, volumeNameLength)
	if _, err := file.ReadAt(name, volumeNameAt); err != nil {
		return false
	}
	return strings.EqualFold(strings.TrimRight(string(name), " \x00"), seedVolume)
}

// readSeed mounts the volume while it reads.
func readSeed(disk string) (content seedContent, err error) {
	if err := unix.Mount(disk, seedDir, "iso9660", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return seedContent{}, fmt.Errorf("mounting it: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(seedDir, 0)) }()
	if content.userData, err = seedFile(userDataFile); err != nil {
		return seedContent{}, err
	}
	meta, err := seedFile(metaDataFile)
	if err != nil {
		return seedContent{}, err
	}
	var names struct {
		HostName string `json:"local-hostname"`
	}
	if err := yaml.Unmarshal(meta, &names); err != nil {
		return seedContent{}, fmt.Errorf("the file %s is not a YAML mapping: %w", metaDataFile, err)
	}
	content.hostName = names.HostName
	return content, nil
}

// seedFile reads a file of the mounted seed. Its name may be in upper case.
func seedFile(name string) ([]byte, error) {
	entries, err := os.ReadDir(seedDir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if strings.EqualFold(entry.Name(), name) {
			return os.ReadFile(filepath.Join(seedDir, entry.Name()))
		}
	}
	return nil, fmt.Errorf("the volume has no file %s", name)
}
