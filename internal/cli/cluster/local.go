package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/cli/drivers"
	"github.com/millwright-dev/millwright/internal/cli/localdir"
	managercmd "github.com/millwright-dev/millwright/internal/cli/manager"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/local/hostrunner"
	"github.com/millwright-dev/millwright/internal/local/hostrunner/provisioner"
	"github.com/millwright-dev/millwright/internal/manager"
)

// local is a running cluster on this machine.
type local struct {
	*upFlags
	log     logr.Logger
	program string // path of this program
	plane   *controlplane.ControlPlane
	admin   kubernetes.Interface
	// listener is the listener of the VM controller.
	listener net.Listener
	// imageURL is the URL of the image directory.
	imageURL string
	// needsGuest reports whether the image directory is that of the guest, not one that the user chose.
	needsGuest bool
}

const (
	// localNamespace is the namespace of Machines and virtual machines.
	localNamespace = "default"
	// systemNamespace is the namespace of the VM controller.
	systemNamespace = "millwright-system"
)

// start starts the control plane, and creates what the controllers need in it.
func (m *local) start(ctx context.Context) error {
	var pods, pods6 netip.Prefix
	var advertised netip.Addr
	if m.guest == guestFull {
		pods, advertised = m.podNetwork, gatewayOf(m.network)
	}
	if m.ipv6 {
		pods6 = podNetwork6
	}
	egress, err := m.egressSocket()
	if err != nil {
		return err
	}
	m.plane, err = controlplane.Start(ctx, controlplane.Config{
		PodNetwork: pods, PodNetwork6: pods6, AdvertiseAddress: advertised, EgressSocket: egress,
		Dir: m.dir, Binaries: m.binaries, APIServerPort: m.ports.api, UnsafeNoFsync: m.noFsync,
		ServerNames: []string{gatewayOf(m.network).String()}, Logger: m.log.WithName("local"),
	})
	if err != nil {
		return err
	}
	remember := func(context.Context) error { return localdir.SetDriver(m.dir, m.Driver.Name) }
	for _, step := range []func(context.Context) error{remember, m.install, m.plane.AllowJoining, m.listen} {
		if err := step(ctx); err != nil {
			return errors.Join(err, m.stop(context.WithoutCancel(ctx)))
		}
	}
	return nil
}

// install creates the CRDs, the roles and the storage class.
func (m *local) install(ctx context.Context) error {
	admin := m.plane.RESTConfig()
	crds, err := fs.Sub(config.Files, "crd")
	if err != nil {
		return fmt.Errorf("cannot read the CRDs: %w", err)
	}
	if err := controlplane.InstallCRDs(ctx, admin, crds); err != nil {
		return err
	}
	// The namespace is created before the objects in it.
	for _, manifests := range []struct{ files, namespace string }{
		{"local/*.yaml", localNamespace},
		{"policy/*.yaml", localNamespace},
		{"rbac/control-role.yaml", localNamespace},
		{"rbac/driver-vm-role.yaml", localNamespace},
		{"rbac/driver-vm-cluster-role.yaml", ""},
		{"rbac/target-role*.yaml", localNamespace},
		{"rbac/node-certificates-role.yaml", localNamespace},
		{"rbac/vm-controller-role.yaml", systemNamespace},
		{"rbac/vm-subresources-role.yaml", ""},
		{"rbac/vm-console-role.yaml", ""},
	} {
		if err := controlplane.Apply(ctx, admin, config.Files, manifests.files, manifests.namespace); err != nil {
			return err
		}
	}
	if m.guest == guestFull {
		if err := controlplane.Apply(ctx, admin, config.Files, "full/*.yaml", localNamespace); err != nil {
			return err
		}
	}
	if m.admin, err = kubernetes.NewForConfig(admin); err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	return provisioner.EnsureClass(ctx, m.admin, provisioner.DefaultClass)
}

// listen opens the VM controller's port, which hypervisors use while they run.
func (m *local) listen(context.Context) error {
	port, err := m.plane.PortFor("vm-controller", m.ports.vms)
	if err != nil {
		return err
	}
	m.listener, err = net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("cannot listen for hypervisors: %w", err)
	}
	return nil
}

// run runs everything, and use, until the context is done, use returns, or a part fails. Hosts stop after the
// controllers, which therefore do not observe that hosts stop.
func (m *local) run(ctx context.Context, use func(context.Context, *local) error) error {
	parts := []part{m.serveImages, m.writeExamples, m.connectGuests, m.reachGuests, m.startVMs, m.startMachines, m.startHosts, m.keepDNS}
	return runParts(ctx, parts, func(ctx context.Context) error { return use(ctx, m) })
}

// part starts something that runs in a group until the context is done.
type part func(context.Context, *errgroup.Group) error

func runParts(ctx context.Context, parts []part, use func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for _, start := range parts {
		if err := start(ctx, group); err != nil {
			err = explainCancel(ctx, explainPort(err))
			cancel()
			return errors.Join(err, group.Wait())
		}
	}
	group.Go(func() error {
		defer cancel()
		return use(ctx)
	})
	return group.Wait()
}

func (m *local) serveImages(ctx context.Context, group *errgroup.Group) error {
	port, err := m.plane.PortFor("images", m.ports.images)
	if err != nil {
		return err
	}
	served, err := controlplane.ServeFiles(ctx, m.images, port)
	if err != nil {
		return err
	}
	m.imageURL = imageURL(port)
	group.Go(func() error { return <-served })
	return nil
}

// imageURL returns the URL of the image directory.
func imageURL(port int) string { return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// startVMs starts the VM controller and the provisioner of its volumes.
func (m *local) startVMs(ctx context.Context, group *errgroup.Group) error {
	own, err := m.userConfig("millwright-vm-controller")
	if err != nil {
		return err
	}
	ports, err := m.hostPorts()
	if err != nil {
		return err
	}
	api, err := m.vmAPI()
	if err != nil {
		return err
	}
	vms := manager.VMConfig{
		API:            api,
		Infrastructure: own, Namespace: systemNamespace,
		Service: manager.VMService{
			Listen:   func(context.Context) (net.Listener, error) { return m.listener, nil },
			Endpoint: m.listener.Addr().String(),
		},
		Guests:          manager.VMGuests{Image: "millwright", Networks: m.guestNetworks(), HostPorts: ports, OneMachine: true, Accelerator: m.accel},
		Migration:       m.migrations.Config(),
		ConcurrentSyncs: m.Config.ConcurrentSyncs, Log: m.log.WithName("vms"),
	}
	volumes := provisioner.Provisioner{Client: m.admin, Dir: m.path("volumes"), Log: m.log.WithName("volumes")}
	group.Go(func() error { return manager.RunVMs(ctx, vms) })
	group.Go(func() error { return volumes.Run(ctx) })
	return nil
}

// vmAPI configures how kube-apiserver reaches the subresources of virtual machines: by the Service of
// local/subresources.yaml, whose external name resolves to this machine's loopback address.
func (m *local) vmAPI() (manager.VMAPI, error) {
	port, err := m.plane.PortFor("vm-subresources", 0)
	return manager.VMAPI{
		Listen: func(ctx context.Context) (net.Listener, error) {
			return (&net.ListenConfig{}).Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		},
		Service: types.NamespacedName{Namespace: systemNamespace, Name: "millwright-vm-subresources"}, Port: int32(port),
	}, err
}

// startMachines starts the controllers of Machines.
func (m *local) startMachines(ctx context.Context, group *errgroup.Group) error {
	for _, cluster := range []**rest.Config{&m.Config.Control, &m.Config.Target} {
		own, err := m.userConfig("millwright")
		if err != nil {
			return err
		}
		own.UserAgent = managercmd.Agent
		*cluster = own
	}
	m.Config.Pages.Socket = localdir.MetricsSocket(m.dir) // for "millwright ui"
	m.Driver.Installation = "local"
	m.Driver.Kinds = drivers.With(&drivers.SimOptions{Dir: m.path("sim"), Heartbeat: drivers.DefaultHeartbeat})
	m.Config.Namespace, m.Config.Log = localNamespace, m.log
	m.Config.ApproveNodeCertificates, m.Config.ReservedNode = true, isHost
	if err := m.Complete(ctx); err != nil {
		return err
	}
	group.Go(func() error { return m.Run(ctx) })
	return nil
}

// hostPrefix precedes the number of a host in the name of its Node.
const hostPrefix = "host-"

// isHost reports whether a Node is a host, now or with another value of --hosts.
func isHost(node string) bool {
	number, ok := strings.CutPrefix(node, hostPrefix)
	_, err := strconv.Atoi(number)
	return ok && err == nil
}

// startHosts starts the hosts, each as a process.
func (m *local) startHosts(ctx context.Context, group *errgroup.Group) error {
	for i := range m.hosts {
		name := hostPrefix + strconv.Itoa(i+1)
		dir := localdir.HostDir(m.plane.Dir(), name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("cannot create the directory of %s: %w", name, err)
		}
		kubeconfig := filepath.Join(dir, "kubeconfig")
		keep, err := m.plane.KeepKubeconfig(kubeconfig, "system:node:"+name, "system:nodes", hostrunner.Group)
		if err != nil {
			return err
		}
		group.Go(func() error { return keep(ctx) })
		err = m.plane.StartChild(ctx, controlplane.Child{
			Name: name, Path: m.program, Grace: hostGrace,
			Args: []string{
				"hostrunner", "--name", name, "--dir", dir, "--kubeconfig", kubeconfig,
				"--volumes", m.path("volumes"), "--images", m.images,
				"--image-servers", m.allowedServers(), "--share", strconv.Itoa(m.hosts),
				"--switch", m.switchSocket(), "--no-outside=" + strconv.FormatBool(!m.outside),
				"--v", strconv.Itoa(m.Logging.Verbosity), "--logging-format", m.Logging.Format,
			},
		})
		if err != nil {
			return fmt.Errorf("cannot start %s: %w", name, err)
		}
	}
	return nil
}

// allowedServers returns the servers of this machine from which images may be downloaded.
func (m *local) allowedServers() string {
	own := strings.TrimPrefix(m.imageURL, "http://")
	return strings.Trim(own+","+m.imageServers, ",")
}

// hostGrace is how long a host may take to stop its virtual machines.
const hostGrace = 30 * time.Second

// stop stops the hosts with their virtual machines, then the control plane.
func (m *local) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, hostGrace+15*time.Second)
	defer cancel()
	if m.listener != nil {
		m.listener.Close() // the VM controller may have closed it
	}
	return errors.Join(m.plane.StopChildren(ctx), m.plane.Stop(ctx))
}

// userConfig returns credentials of a user to which the shipped roles are bound.
func (m *local) userConfig(user string) (*rest.Config, error) {
	own, err := m.plane.UserConfig(user)
	if err != nil {
		return nil, err
	}
	own.UserAgent = user
	return own, nil
}

func (m *local) path(name string) string { return filepath.Join(m.plane.Dir(), name) }

// hostPorts returns the loopback ports of this machine that guests may connect to.
func (m *local) hostPorts() ([]uint16, error) {
	server, err := url.Parse(m.plane.URL())
	if err != nil {
		return nil, fmt.Errorf("cannot read the API server's address: %w", err)
	}
	port, err := strconv.ParseUint(server.Port(), 10, 16)
	if err != nil {
		return nil, fmt.Errorf("cannot read the API server's port: %w", err)
	}
	ports := []uint16{uint16(port)}
	for _, port := range m.guestPorts {
		ports = append(ports, uint16(port))
	}
	return ports, nil
}

// guestNetworks returns the networks of virtual machines.
func (m *local) guestNetworks() []netip.Prefix {
	if m.ipv6 {
		return []netip.Prefix{m.network, vmNetwork6}
	}
	return []netip.Prefix{m.network}
}

// gatewayOf returns the address at which guests of a network reach this machine.
func gatewayOf(network netip.Prefix) netip.Addr { return network.Addr().Next().Next() }

// greet prints that everything is running, and commands to try.
func (m *local) greet(out io.Writer, took time.Duration) {
	fmt.Fprintf(out, "Ready after %.1f s. Try:\n\n", took.Seconds())
	m.printCommands(out, filepath.Join(m.binaries, "kubectl"), m.plane.Kubeconfig())
	if m.lacksGuest() {
		fmt.Fprintf(out, "The examples need a guest, which has not been built yet: run \"make %s\".\n", guestBuilds[m.guest])
	}
	fmt.Fprintf(out, "Ctrl-C stops everything; the data stays in %s.\n", m.dir)
}

// lacksGuest reports whether the guest of the examples has not been built. Users who chose a directory of images have
// their own.
func (m *local) lacksGuest() bool {
	_, err := os.Stat(filepath.Join(m.images, "vmlinux"))
	return err != nil && m.needsGuest && m.Driver.Name == localdir.DriverVM
}

func (m *local) printCommands(out io.Writer, kubectl, kubeconfig string) {
	kinds := "machinedeployments,machinesets,machines,virtualmachines,nodes"
	if m.guest == guestFull {
		kinds += ",pods"
	}
	if m.Driver.Name == localdir.DriverSim {
		kinds = "machinedeployments,machinesets,machines,nodes"
	}
	fmt.Fprintf(out, "  export KUBECONFIG=%s\n  %s apply -f %s/\n  %s get %s\n  %s ui --dir %s\n\n", kubeconfig, kubectl, m.examplesDir(), kubectl, kinds, m.program, m.dir)
}
