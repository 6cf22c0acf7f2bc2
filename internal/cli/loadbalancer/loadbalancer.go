// Package loadbalancer runs the load balancers of control planes.
package loadbalancer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/logging"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
	"github.com/millwright-dev/millwright/internal/manager"
)

type flags struct {
	config        manager.LoadBalancerConfig
	kubeconfig    string
	ports         string
	via           string
	healthAddress string
	elect         bool
	set           *pflag.FlagSet
	logging       logging.Flags
}

// New returns the command "load-balancer".
func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   "load-balancer",
		Short: "Forward the endpoints of Cluster API clusters to their control plane machines",
		Long: `Forward the endpoints of Cluster API clusters to their control plane machines.

A MillwrightCluster whose field spec.controlPlaneLoadBalancer has the --name of this process gets one of
its ports as its endpoint, before machines exist. Connections go to machines whose API server is ready.

With --leader-elect, several processes can share a name behind one --host: all forward, and one assigns ports.`,
		Example: `  millwright load-balancer --kubeconfig .millwright/kubeconfig --address 192.0.2.7 --via .millwright/egress.sock`,
		Args:    args.None,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.ErrOrStderr()) },
	}
	f.add(cmd.Flags())
	return cmd
}

func (f *flags) add(set *pflag.FlagSet) {
	c := &f.config
	f.set = set
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the management cluster; defaults to the in-cluster config")
	set.StringVar(&c.Namespace, "namespace", "", "namespace of the MillwrightClusters; empty for all")
	set.StringVar(&c.WatchFilter, "watch-filter", "", "value of the label cluster.x-k8s.io/watch-filter of the MillwrightClusters; empty for all")
	args.Section(set, "cluster")
	set.StringVar(&c.Name, "name", infrav1.DefaultLoadBalancer, "name by which MillwrightClusters select this process; without --leader-elect, it must be unique")
	set.StringVar(&c.Address, "address", "", "IP address on which to listen; machines and the controllers of Cluster API must be able to reach it; required")
	set.StringVar(&c.Host, "host", "", "host of the endpoints: a name or an address that resolves to --address; defaults to --address")
	set.StringVar(&f.ports, "ports", "16500-16599", "first and last port of the endpoints, one for each cluster")
	set.IntVar(&c.MaxPerNamespace, "max-ports-per-namespace", 10, "maximum number of ports for the MillwrightClusters of one namespace, including those with a given endpoint; 0 for no limit; if lowered, the newest MillwrightClusters above the limit lose their ports at the next start")
	set.StringVar(&f.via, "via", "", `Unix socket through which to connect to machines by HTTP CONNECT, such as egress.sock in the directory of "millwright up --guest full"; empty to connect directly`)
	set.IntVar(&c.MaxConnections, "max-connections", 4096, "maximum number of connections per endpoint; without capacity for a new connection, the oldest one of the client with the most connections is closed")
	set.IntVar(&c.MaxPerClient, "max-connections-per-client", 1024, "maximum number of connections per endpoint from one IPv4 address or IPv6 /64; machines behind one gateway share an address")
	set.IntVar(&c.MaxTotalConnections, "max-total-connections", 16384, "maximum number of connections to all endpoints together; half of them are divided among --ports, so that each endpoint has a guaranteed share")
	set.StringVar(&f.healthAddress, "health-address", "", "host:port on which to serve /healthz, /livez, /metrics, /configz and /readyz, which returns 200 once the ports are open; empty to disable")
	args.Section(set, "load balancer")
	set.BoolVar(&f.elect, "leader-elect", false, "elect one of several processes of this name to assign ports; --host must resolve to all of them")
	set.StringVar(&c.Lease.Namespace, "leader-elect-namespace", "", "namespace of the lease; defaults to that of the Pod, or of the kubeconfig")
	set.StringVar(&c.Lease.Name, "leader-elect-resource-name", "millwright-load-balancer", "name of the lease")
	args.Section(set, "leader election")
	f.logging.Add(set)
}

// validate returns all problems with the flags, and sets derived values.
func (f *flags) validate() error {
	c := &f.config
	var wrong args.Problems
	wrong.If(c.Address == "", "--address: required")
	wrong.If(c.Address != "" && net.ParseIP(c.Address) == nil, "--address: %q is not an IP address", c.Address)
	c.Host = cmp.Or(c.Host, c.Address)
	wrong.If(net.ParseIP(c.Host) == nil && len(utilvalidation.IsDNS1123Subdomain(c.Host)) > 0, "--host: %q is neither a DNS name nor an IP address", c.Host)
	wrong.If(len(utilvalidation.IsDNS1123Label(c.Name)) > 0, "--name: %q is not a valid name", c.Name)
	wrong.If(c.MaxConnections <= 0, "--max-connections: must be greater than 0")
	wrong.If(c.MaxPerClient <= 0, "--max-connections-per-client: must be greater than 0")
	wrong.If(c.MaxTotalConnections <= 0, "--max-total-connections: must be greater than 0")
	var err error
	c.FirstPort, c.LastPort, err = parsePorts(f.ports)
	wrong.If(err != nil, "--ports: %v", err)
	wrong.If(c.MaxPerNamespace < 0, "--max-ports-per-namespace: must not be negative")
	c.Pages.Address, c.Pages.Port, err = parseAddress(f.healthAddress)
	wrong.If(err != nil, "--health-address: %v", err)
	wrong.If(c.Lease.Namespace != "" && len(utilvalidation.IsDNS1123Label(c.Lease.Namespace)) > 0, "--leader-elect-namespace: %q is not a valid namespace", c.Lease.Namespace)
	wrong.If(len(utilvalidation.IsDNS1123Subdomain(c.Lease.Name)) > 0, "--leader-elect-resource-name: %q is not a valid name", c.Lease.Name)
	return wrong.Err()
}

// parseAddress reads HOST:PORT. An empty text is port 0.
func parseAddress(text string) (host string, port int, err error) {
	if text == "" {
		return "", 0, nil
	}
	host, name, err := net.SplitHostPort(text)
	if err != nil {
		return "", 0, err
	}
	number, err := strconv.ParseUint(name, 10, 16)
	if err != nil || number == 0 {
		return "", 0, fmt.Errorf("%q is not a port number", name)
	}
	return host, int(number), nil
}

var errPorts = errors.New("must be FIRST-LAST, with ports between 1 and 65535")

// parsePorts reads FIRST-LAST.
func parsePorts(text string) (first, last int32, err error) {
	from, to, found := strings.Cut(text, "-")
	low, errLow := strconv.ParseUint(from, 10, 16)
	high, errHigh := strconv.ParseUint(to, 10, 16)
	if !found || errLow != nil || errHigh != nil || low == 0 || high < low {
		return 0, 0, errPorts
	}
	return int32(low), int32(high), nil
}

// run runs the load balancer until the context is done. Logs go to stderr.
func (f *flags) run(ctx context.Context, stderr io.Writer) error {
	if err := f.validate(); err != nil {
		return args.Wrong(err)
	}
	log, err := f.logging.SetUp(stderr)
	if err != nil {
		return err
	}
	c := &f.config
	namespace := ""
	if c.Control, namespace, err = connect.Named("--kubeconfig", f.kubeconfig, ""); err != nil {
		return err
	}
	c.Lease.Namespace = cmp.Or(c.Lease.Namespace, namespace)
	if !f.elect {
		c.Lease = types.NamespacedName{}
	}
	c.Log, c.Dial = log, loadbalancer.Dial
	if f.via != "" {
		c.Dial = via(f.via)
	}
	c.Ready = func() { log.Info("Ready", "address", c.Address, "ports", f.ports) }
	c.Pages.Flags = map[string]string{}
	f.set.VisitAll(func(flag *pflag.Flag) { c.Pages.Flags[flag.Name] = flag.Value.String() })
	return manager.RunLoadBalancers(ctx, *c)
}
