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
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/logging"
	"github.com/millwright-dev/millwright/internal/cli/probes"
	"github.com/millwright-dev/millwright/internal/manager"
)

type flags struct {
	config        manager.LoadBalancerConfig
	kubeconfig    string
	ports         string
	via           string
	healthAddress string
	logging       logging.Flags
}

// New returns the command.
func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   "load-balancer",
		Short: "Forward the endpoints of Cluster API's clusters to their control plane machines",
		Long: `Forward the endpoints of Cluster API's clusters to their control plane machines.

A MillwrightCluster that has the field spec.controlPlaneLoadBalancer with the --name of this process gets one of
its ports as endpoint, before there are machines. What arrives there goes to those whose API server is ready.`,
		Example: `  millwright load-balancer --kubeconfig .millwright/kubeconfig --address 192.0.2.7 --via .millwright/egress.sock`,
		Args:    args.None,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.ErrOrStderr()) },
	}
	f.add(cmd.Flags())
	return cmd
}

func (f *flags) add(set *pflag.FlagSet) {
	c := &f.config
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the management cluster; defaults to the in-cluster config")
	set.StringVar(&c.Namespace, "namespace", "", "namespace of the MillwrightClusters; empty for all")
	set.StringVar(&c.WatchFilter, "watch-filter", "", "value of the label cluster.x-k8s.io/watch-filter of the MillwrightClusters; empty for all")
	set.StringVar(&c.Name, "name", infrav1.DefaultLoadBalancer, "name by which MillwrightClusters ask for this process, of which only one may have it")
	set.StringVar(&c.Address, "address", "", "IP address at which the ports are opened; machines and the controllers of Cluster API have to reach it; required")
	set.StringVar(&c.Host, "host", "", "host of the endpoints: a name or an address that leads to --address; defaults to --address")
	set.StringVar(&f.ports, "ports", "16500-16599", "first and last port of the endpoints, one for each cluster")
	set.StringVar(&f.via, "via", "", `Unix socket that makes the connections to machines by HTTP CONNECT: egress.sock in the folder of "millwright up --guest full"; empty for those of this host`)
	set.IntVar(&c.MaxConnections, "max-connections", 4096, "how many connections each endpoint may have; others are closed at once")
	set.IntVar(&c.MaxPerClient, "max-connections-per-client", 1024, "how many of them may come from one IPv4 address, or from 64 bits of IPv6; machines behind one gateway share an address")
	set.StringVar(&f.healthAddress, "health-address", "", "host:port of /healthz and, 200 once the clusters are known, /readyz; empty for none")
	f.logging.Add(set)
}

// validate returns all problems with the flags, and fills in what follows from them.
func (f *flags) validate() error {
	c := &f.config
	var wrong args.Problems
	wrong.If(c.Address == "", "--address: required")
	wrong.If(c.Address != "" && net.ParseIP(c.Address) == nil, "--address: %q is not an IP address", c.Address)
	c.Host = cmp.Or(c.Host, c.Address)
	wrong.If(net.ParseIP(c.Host) == nil && len(utilvalidation.IsDNS1123Subdomain(c.Host)) > 0, "--host: %q is neither a name nor an address", c.Host)
	wrong.If(len(utilvalidation.IsDNS1123Label(c.Name)) > 0, "--name: %q is not a name", c.Name)
	wrong.If(c.MaxConnections <= 0, "--max-connections: must be above 0")
	wrong.If(c.MaxPerClient <= 0, "--max-connections-per-client: must be above 0")
	var err error
	c.FirstPort, c.LastPort, err = parsePorts(f.ports)
	wrong.If(err != nil, "--ports: %v", err)
	if f.healthAddress != "" {
		_, _, err := net.SplitHostPort(f.healthAddress)
		wrong.If(err != nil, "--health-address: %v", err)
	}
	return wrong.Err()
}

var errPorts = errors.New("must be FIRST-LAST, with ports from 1 to 65535")

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

// run balances until the context ends. Logs go to stderr.
func (f *flags) run(ctx context.Context, stderr io.Writer) error {
	if err := f.validate(); err != nil {
		return args.Wrong(err)
	}
	log, err := f.logging.SetUp(stderr)
	if err != nil {
		return err
	}
	c := &f.config
	if c.Control, _, err = connect.Named("--kubeconfig", f.kubeconfig, ""); err != nil {
		return err
	}
	c.Log, c.Dial = log, manager.KeepAlive
	if f.via != "" {
		c.Dial = via(f.via)
	}
	var known atomic.Bool
	c.Ready = func() {
		known.Store(true)
		log.Info("Ready", "address", c.Address, "ports", f.ports)
	}
	all, ctx := errgroup.WithContext(ctx)
	if f.healthAddress != "" {
		health, err := probes.Listen(ctx, f.healthAddress, func() error {
			if !known.Load() {
				return errors.New("the clusters are not known yet")
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("--health-address: %w", err)
		}
		all.Go(func() error { return health.Serve(ctx) })
	}
	all.Go(func() error { return manager.RunLoadBalancers(ctx, *c) })
	return all.Wait()
}
