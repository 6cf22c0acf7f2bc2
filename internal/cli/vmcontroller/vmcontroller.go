// Package vmcontroller runs the controller of VirtualMachines in a cluster.
package vmcontroller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/logging"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/tracing"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// agent is the user agent of the controller's requests.
const agent = "millwright-vm-controller"

// flags are the flags of "millwright vm-controller".
type flags struct {
	config     manager.VMConfig
	migrations Migrations
	pods       pods
	logging    logging.Flags
	set        *pflag.FlagSet
	version    string

	kubeconfig string
	qps        float32
	burst      int
	// listen is the address for hypervisors, subresources the address for kube-apiserver, and advertise the
	// address of the Service's endpoint.
	listen, subresources, advertise string
	networks                        []string
	overlay                         overlayFlags
	// certificate and key are the files of the certificate authority.
	certificate, key string
	identity         identityFlags
}

// New returns the command "vm-controller".
func New() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   "vm-controller",
		Short: "Run the controller of VirtualMachines in a cluster",
		Long: `Run the controller of VirtualMachines in a cluster.

It creates a Pod with a hypervisor for each VirtualMachine. Hypervisors ask it for permission to run
their guests. If there are several processes, one leads and the others stand by. The Service
--service forwards hypervisors, and users who want a console, to the leader.`,
		Example: `  millwright vm-controller --namespace millwright-system --advertise-address 10.0.0.7 --hypervisor-image registry.example.com/millwright-hypervisor:v0.1.0`,
		Args:    args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.version = cmd.Root().Version
			return f.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	f.add(cmd.Flags())
	return cmd
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
	stop, err := tracing.Start(ctx, os.Getenv, "millwright-vm-controller", f.version, log)
	if err != nil {
		return err
	}
	defer stop()
	f.config.Log = log
	if err := f.complete(); err != nil {
		return err
	}
	err = manager.RunVMs(ctx, f.config)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; choose other ports with --port, --listen and --subresources-listen", err)
	}
	return err
}

// complete completes the configuration from the flags. It does not contact the cluster yet.
func (f *flags) complete() error {
	c := &f.config
	var namespace string
	var err error
	if c.Infrastructure, namespace, err = f.load(); err != nil {
		return err
	}
	if c.Namespace == "" {
		c.Namespace = namespace
	}
	if slices.Contains(c.Namespaces, c.Namespace) {
		return fmt.Errorf("--vm-namespaces: %s is the namespace of the VM controller, whose Secrets guests must not read; use other namespaces", c.Namespace)
	}
	if c.Authority, err = f.authority(); err != nil {
		return err
	}
	if c.Identity, err = f.identity.credentials(c.Log); err != nil {
		return err
	}
	c.Certificates = f.identity.certificates()
	for _, prefix := range f.networks {
		c.Guests.Networks = append(c.Guests.Networks, netip.MustParsePrefix(prefix)) // validated
	}
	c.Guests.Overlay = f.overlay.config()
	c.Migration = f.migrations.Config()
	c.Guests.Pods = f.pods.options()
	c.Service.Listen = listener(f.listen)
	if c.Service.Name != "" {
		c.Service.Address = netip.MustParseAddr(f.advertise)
		c.API = f.api()
	}
	if c.Service.Endpoint == "" {
		c.Service.Endpoint = fmt.Sprintf("%s.%s.svc:%d", c.Service.Name, c.Namespace, servicePort)
	}
	c.Pages.Flags = map[string]string{}
	f.set.VisitAll(func(flag *pflag.Flag) { c.Pages.Flags[flag.Name] = flag.Value.String() })
	return nil
}

// api configures how kube-apiserver reaches the subresources.
func (f *flags) api() manager.VMAPI {
	if f.subresources == "" {
		return manager.VMAPI{}
	}
	service := types.NamespacedName{Namespace: f.config.Namespace, Name: f.config.Service.Name}
	return manager.VMAPI{Listen: listener(f.subresources), Service: service}
}

// listener returns a function that listens on an address.
func listener(address string) func(context.Context) (net.Listener, error) {
	return func(ctx context.Context) (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	}
}

// load reads the kubeconfig, and the namespace of its context or of this Pod.
func (f *flags) load() (*rest.Config, string, error) {
	config, namespace, err := connect.Named("--kubeconfig", f.kubeconfig, "")
	if err != nil {
		return nil, "", err
	}
	config.QPS, config.Burst, config.UserAgent = f.qps, f.burst, agent
	return config, namespace, nil
}

// authority reads the files of the certificate authority. It returns nil if there are none.
func (f *flags) authority() (*identity.Authority, error) {
	if f.certificate == "" {
		return nil, nil
	}
	certificate, err := os.ReadFile(f.certificate)
	if err != nil {
		return nil, fmt.Errorf("--authority-cert-file: %w", err)
	}
	key, err := os.ReadFile(f.key)
	if err != nil {
		return nil, fmt.Errorf("--authority-private-key-file: %w", err)
	}
	authority, err := identity.ParseAuthority(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("--authority-cert-file: %w", err)
	}
	return authority, nil
}

// portOf returns an error unless the address is IP:PORT.
func portOf(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if number, err := strconv.Atoi(port); err != nil || number < 0 || number > 65535 {
		return fmt.Errorf("%q is not a port number", port)
	}
	if host != "" && net.ParseIP(host) == nil {
		return fmt.Errorf("%q is not an IP address", host)
	}
	return nil
}
