// Package autoscaler runs the cloud provider for the Kubernetes cluster-autoscaler.
package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/internal/autoscaler/service"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/logging"
	"github.com/millwright-dev/millwright/internal/cli/probes"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/pluginserver"
)

type flags struct {
	control, target, namespace string
	qps                        float32
	burst                      int
	listen                     string
	files                      plugin.Files
	insecureLoopback           bool
	healthAddress              string
	logging                    logging.Flags
}

// New returns the command "autoscaler-provider".
func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   "autoscaler-provider",
		Short: "Let the Kubernetes cluster-autoscaler scale MachineDeployments",
		Long: `Let the Kubernetes cluster-autoscaler scale MachineDeployments.

This serves the protocol of its --cloud-provider=externalgrpc. A MachineDeployment with the annotation
cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size is a node group.`,
		Example: `  millwright autoscaler-provider --control-kubeconfig control --target-kubeconfig target --namespace machines \
      --listen :8086 --tls-cert-file tls.crt --tls-private-key-file tls.key --client-ca-file ca.crt`,
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.ErrOrStderr()) },
	}
	f.add(cmd.Flags())
	return cmd
}

func (f *flags) add(set *pflag.FlagSet) {
	set.StringVar(&f.control, "control-kubeconfig", "", `kubeconfig of the control cluster, which contains the Machines; "inClusterConfig" for the in-cluster config; defaults to --target-kubeconfig`)
	set.StringVar(&f.target, "target-kubeconfig", "", `kubeconfig of the target cluster, which the nodes join and which is scaled; defaults to the in-cluster config`)
	set.StringVar(&f.namespace, "namespace", "default", "namespace of the Machines in the control cluster")
	set.Float32Var(&f.qps, "kube-api-qps", 20, "maximum requests per second to each API server")
	set.IntVar(&f.burst, "kube-api-burst", 30, "maximum burst of requests to each API server")
	args.Section(set, "cluster")
	set.StringVar(&f.listen, "listen", ":8086", "host:port on which to serve the autoscaler, which needs a client certificate")
	set.StringVar(&f.files.Certificate, "tls-cert-file", "", "TLS certificate for --listen, valid for the host name in the autoscaler's configuration")
	set.StringVar(&f.files.Key, "tls-private-key-file", "", "private key of --tls-cert-file")
	set.StringVar(&f.files.CA, "client-ca-file", "", "certificate authorities of the autoscaler; any client with a certificate from them can create and delete machines")
	set.BoolVar(&f.insecureLoopback, "insecure-loopback", false, "serve --listen, which must be a loopback address, without TLS: every process on the host can create and delete machines")
	set.StringVar(&f.healthAddress, "health-address", "", "host:port on which to serve /healthz and /readyz, which returns 200 while calls are served; empty to disable")
	args.Section(set, "serving")
	f.logging.Add(set)
}

func (f *flags) validate() error {
	var wrong args.Problems
	wrong.If(f.namespace == "", "--namespace: required")
	wrong.If(!(f.qps > 0), "--kube-api-qps: must be greater than 0")
	wrong.If(f.burst <= 0, "--kube-api-burst: must be greater than 0")
	if f.healthAddress != "" {
		_, _, err := net.SplitHostPort(f.healthAddress)
		wrong.If(err != nil, "--health-address: %v", err)
	}
	if err := f.validateListen(); err != nil {
		wrong.Add(err)
	}
	return wrong.Err()
}

func (f *flags) validateListen() error {
	if _, _, err := net.SplitHostPort(f.listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	whole := f.files.Certificate != "" && f.files.Key != "" && f.files.CA != ""
	switch {
	case f.insecureLoopback && f.files != plugin.Files{}:
		return errors.New("--insecure-loopback: cannot be used with --tls-cert-file, --tls-private-key-file and --client-ca-file")
	case f.insecureLoopback:
		if err := pluginserver.CheckLoopback(f.listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	case !whole:
		return errors.New("--listen: requires --tls-cert-file, --tls-private-key-file and --client-ca-file or, on a loopback address, --insecure-loopback")
	}
	return nil
}

// credentials returns the credentials of the server. The error names the file that cannot be used.
func (f *flags) credentials() (credentials.TransportCredentials, error) {
	if f.insecureLoopback {
		return insecure.NewCredentials(), nil
	}
	config, err := f.files.Server()
	if err != nil {
		return nil, args.Wrong(err)
	}
	return credentials.NewTLS(config), nil
}

// clusters returns the control and the target cluster.
func (f *flags) clusters() (control, target *rest.Config, err error) {
	if target, err = f.cluster("--target-kubeconfig", f.target); err != nil {
		return nil, nil, err
	}
	if f.control == "" {
		return target, target, nil
	}
	control, err = f.cluster("--control-kubeconfig", f.control)
	return control, target, err
}

func (f *flags) cluster(flag, path string) (*rest.Config, error) {
	config, _, err := connect.Named(flag, path, "")
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = f.qps, f.burst
	return config, nil
}

// run serves until the context is done. Logs go to stderr.
func (f *flags) run(ctx context.Context, stderr io.Writer) error {
	if err := f.validate(); err != nil {
		return args.Wrong(err)
	}
	log, err := f.logging.SetUp(stderr)
	if err != nil {
		return err
	}
	with, err := f.credentials()
	if err != nil {
		return err
	}
	control, target, err := f.clusters()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	runner := &service.Runner{Config: service.Config{
		Control: control, Target: target, Namespace: f.namespace, Scheme: manager.Scheme(),
		Listener: listener, Credentials: with, Log: log,
	}}
	all, ctx := errgroup.WithContext(ctx)
	if f.healthAddress != "" {
		health, err := probes.Listen(ctx, f.healthAddress, runner.Ready)
		if err != nil {
			_ = listener.Close()
			return fmt.Errorf("--health-address: %w", err)
		}
		all.Go(func() error { return health.Serve(ctx) })
	}
	all.Go(func() error { return runner.Run(ctx) })
	return all.Wait()
}
