// Package cloudcontroller runs the cloud controller of a cluster whose nodes are VirtualMachines.
package cloudcontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/logging"
	managercmd "github.com/millwright-dev/millwright/internal/cli/manager"
	"github.com/millwright-dev/millwright/internal/cloudcontroller"
)

// agent is the user agent of the controller's requests.
const agent = "millwright-cloud-controller"

// flags are the flags of "millwright cloud-controller".
type flags struct {
	config         cloudcontroller.Config
	kubeconfig     string
	infrastructure string
	qps            float32
	burst          int
	set            *pflag.FlagSet
	logging        logging.Flags
}

// New returns the command "cloud-controller".
func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   "cloud-controller",
		Short: "Run the cloud controller of a cluster whose nodes are VirtualMachines",
		Long: `Run the cloud controller of a cluster whose nodes are VirtualMachines of another cluster.

It initializes nodes whose kubelet runs with --cloud-provider=external, deletes nodes whose
VirtualMachine is gone, and gives Services of type LoadBalancer the address of a Service in
the infrastructure cluster. The VirtualMachines need the label
vm.metropolis.monogon.dev/cluster with the value of --cluster-name.`,
		Example: `  millwright cloud-controller --kubeconfig demo.kubeconfig --infrastructure-kubeconfig inClusterConfig \
      --infrastructure-namespace virtual-machines --cluster-name demo`,
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.ErrOrStderr()) },
	}
	f.add(cmd.Flags())
	return cmd
}

func (f *flags) add(set *pflag.FlagSet) {
	c := &f.config
	f.set = set
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the workload cluster, which has the nodes; defaults to the in-cluster config")
	set.StringVar(&f.infrastructure, "infrastructure-kubeconfig", "", `kubeconfig of the infrastructure cluster, which has the VirtualMachines; "inClusterConfig" for the in-cluster config; required`)
	set.StringVar(&c.Namespace, "infrastructure-namespace", "", "namespace of the VirtualMachines; defaults to that of the kubeconfig, or of the Pod")
	set.StringVar(&c.Cluster, "cluster-name", "", "name of the workload cluster: the value of the label vm.metropolis.monogon.dev/cluster of its VirtualMachines; required")
	set.Float32Var(&f.qps, "kube-api-qps", 20, "maximum requests per second to each API server")
	set.IntVar(&f.burst, "kube-api-burst", 30, "maximum burst of requests to each API server")
	args.Section(set, "cluster")
	set.StringVar(&c.Pages.Address, "address", "0.0.0.0", "IP address on which to serve /healthz, /readyz, /livez and /metrics")
	set.IntVar(&c.Pages.Port, "port", 10273, "port on which to serve /healthz, /readyz, /livez and /metrics over HTTP; 0 to disable")
	set.BoolVar(&c.Pages.Profiling.Enabled, "profiling", false, "enable profiling via web interface host:port/debug/pprof/")
	args.Section(set, "serving")
	managercmd.AddElection(set, &c.Election)
	set.Lookup("leader-elect-retry-period").Usage = "duration between attempts to acquire or renew the lease" // it is not released
	set.StringVar(&c.Election.Namespace, "leader-elect-namespace", "kube-system", "namespace of the lease in the workload cluster")
	args.Section(set, "leader election")
	f.logging.Add(set)
}

// validate returns all problems with the flags.
func (f *flags) validate() error {
	c := f.config
	var wrong args.Problems
	wrong.If(f.infrastructure == "", "--infrastructure-kubeconfig: required")
	wrong.If(c.Namespace != "" && len(utilvalidation.IsDNS1123Label(c.Namespace)) > 0, "--infrastructure-namespace: %q is not a valid namespace", c.Namespace)
	wrong.If(c.Cluster == "", "--cluster-name: required")
	wrong.If(c.Cluster != "" && (len(utilvalidation.IsDNS1123Label(c.Cluster)) > 0 || len(c.Cluster) > cloudcontroller.MaxCluster),
		"--cluster-name: %q is not a valid name; use at most %d lower-case letters, digits and hyphens", c.Cluster, cloudcontroller.MaxCluster)
	wrong.If(c.Election.Namespace == "" || len(utilvalidation.IsDNS1123Label(c.Election.Namespace)) > 0, "--leader-elect-namespace: %q is not a valid namespace", c.Election.Namespace)
	wrong.If(net.ParseIP(c.Pages.Address) == nil, "--address: %q is not an IP address", c.Pages.Address)
	wrong.Port("port", c.Pages.Port)
	wrong.If(!(f.qps > 0), "--kube-api-qps: must be greater than 0") // also for NaN
	wrong.If(f.burst <= 0, "--kube-api-burst: must be greater than 0")
	wrong.Add(managercmd.ValidateElection(c.Election))
	return wrong.Err()
}

// connect returns the configuration for the cluster of a kubeconfig, and the namespace of its context.
func (f *flags) connect(flag, path string) (*rest.Config, string, error) {
	config, namespace, err := connect.Named(flag, path, "")
	if err != nil {
		return nil, "", err
	}
	config.QPS, config.Burst, config.UserAgent = f.qps, f.burst, agent
	return config, namespace, nil
}

// run runs the controller until the context is done. Logs go to stderr.
func (f *flags) run(ctx context.Context, stderr io.Writer) error {
	if err := f.validate(); err != nil {
		return args.Wrong(err)
	}
	log, err := f.logging.SetUp(stderr)
	if err != nil {
		return err
	}
	c := &f.config
	c.Log = log
	if c.Workload, _, err = f.connect("--kubeconfig", f.kubeconfig); err != nil {
		return err
	}
	namespace := ""
	if c.Infrastructure, namespace, err = f.connect("--infrastructure-kubeconfig", f.infrastructure); err != nil {
		return err
	}
	c.Namespace = cmp.Or(c.Namespace, namespace)
	c.Pages.Flags = map[string]string{}
	f.set.VisitAll(func(flag *pflag.Flag) { c.Pages.Flags[flag.Name] = flag.Value.String() })
	err = cloudcontroller.Run(ctx, *c)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; choose another port with --port", err)
	}
	return err
}
