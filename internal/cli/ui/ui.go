// Package ui runs the page that shows pools, machines, virtual machines and hosts in a browser.
package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/gorilla/websocket"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/vm"
	"github.com/millwright-dev/millwright/internal/reconcile/relist"
	"github.com/millwright-dev/millwright/internal/ui"
)

// flags are those of the command.
type flags struct {
	kubeconfig.Flags

	target string
	// metricsURL is where the metrics of the manager are read, or connect.None. If empty, they are searched.
	metricsURL string

	port    int
	host    string
	browser bool

	shared
}

// New returns the command "ui". version is that of this program.
func New(version string) *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show pools, machines, virtual machines and hosts in a browser",
		Long: `Show pools, machines, virtual machines and hosts in a browser.

The page shows each pool with its machines, what a rollout waits for, and what happens next, as
"millwright explain" and "millwright rollout status" do. It is current without reloading. Its
buttons show the command that they stand for, and ask before they run it. It also opens the
consoles of virtual machines, and draws the metrics of the manager of the last hour.

The command serves the page on the loopback address until it is interrupted. It prints a link that
works once, for one browser. The page can do what your kubeconfig permits, and nothing else: kinds
that you may not read are marked as such. No manager needs to run.

Without --namespace, the page shows all namespaces, or that of the context if you may not list the
objects of all.

With --in-cluster, the command serves the page with TLS to many users, as a Deployment. Each user
logs in with a bearer token, or a proxy in front of the page adds it to the requests, and the page
can do what that token permits. The command has no permissions of its own: it uses no credentials
of a service account or of a kubeconfig.`,
		Example: `  millwright ui
  millwright ui --kubeconfig control.yaml --target-kubeconfig target.yaml -n machines
  millwright ui --in-cluster --port 8443 --url https://machines.example.com/`,
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, version) },
	}
	f.Add(cmd, "objects")
	cmd.Flags().Lookup("namespace").Usage = "namespace of the objects; defaults to all"
	cmd.Flags().StringVar(&f.target, "target-kubeconfig", "", `kubeconfig of the target cluster, which the nodes join; "none" if there is none; defaults to the cluster of the machines`)
	args.Section(cmd.Flags(), "cluster")
	cmd.Flags().StringVar(&f.metricsURL, "metrics-url", "", `URL of the manager's metrics, such as http://127.0.0.1:10259/metrics; "none" to show no plots; defaults to those of the local cluster, or of the Pods that hold the leases`)
	cmd.Flags().IntVar(&f.port, "port", 0, "port to listen on; 0 for any")
	cmd.Flags().StringVar(&f.host, "host", "", "host name in the link: localhost or a name below it, or a loopback address; defaults to a random name below localhost")
	cmd.Flags().BoolVar(&f.browser, "browser", true, "open the link in a browser, if there is a desktop")
	args.Section(cmd.Flags(), "page")
	f.shared.add(cmd)
	args.Section(cmd.Flags(), "in-cluster")
	return cmd
}

// loopback is the only address that is listened on.
const loopback = "127.0.0.1"

func (f *flags) validate() error {
	var wrong args.Problems
	wrong.If(f.port < 0 || f.port > 65535, "--port: must be between 0 and 65535")
	wrong.If(f.host != "" && !isLoopback(f.host), "--host: %q is not a name of the loopback address; use localhost, a name below localhost, or 127.0.0.1", f.host)
	wrong.If(f.metricsURL != "" && f.metricsURL != connect.None && !validMetricsURL(f.metricsURL), "--metrics-url: %q is not a URL with http or https and without credentials, or %q", f.metricsURL, connect.None)
	f.shared.validate(f, &wrong)
	return wrong.Err()
}

// run serves the page until the command is interrupted.
func (f *flags) run(cmd *cobra.Command, version string) error {
	if err := f.validate(); err != nil {
		return args.Wrong(err)
	}
	ctrl.SetLogger(logr.Discard()) // the page shows problems
	if f.inCluster {
		return f.runShared(cmd, version)
	}
	options, err := f.options(version)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(f.port)))
	if err != nil {
		return fmt.Errorf("cannot serve the page: %w; choose another --port", err)
	}
	if f.host == "" {
		f.host = ui.NewHostName()
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return err
	}
	options.Host = net.JoinHostPort(f.host, port)
	server, err := ui.New(options)
	if err != nil {
		return err
	}
	remove := f.open(cmd, server.URL())
	defer remove()
	return serve(cmd.Context(), listener, &http.Server{Handler: server}, server.Run)
}

// readHeaderTimeout and shutdownTimeout limit how long a browser may take for a request, and how long the command waits for
// requests when it is interrupted.
const (
	readHeaderTimeout = 10 * time.Second
	shutdownTimeout   = 2 * time.Second
)

// serve serves the page until ctx is done. run keeps what it shows current until then.
func serve(ctx context.Context, listener net.Listener, page *http.Server, run func(context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	current := make(chan struct{})
	go func() {
		defer close(current)
		run(ctx)
	}()
	page.ReadHeaderTimeout = readHeaderTimeout
	context.AfterFunc(ctx, func() {
		ending, stop := context.WithTimeout(context.Background(), shutdownTimeout)
		defer stop()
		if page.Shutdown(ending) != nil {
			_ = page.Close() // the process exits anyway
		}
	})
	err := page.Serve(listener)
	cancel()
	<-current
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("cannot serve the page: %w", err)
}

// options returns the clients of both clusters. It does not contact them yet.
func (f *flags) options(version string) (ui.Options, error) {
	config, namespace, err := f.Load()
	if err != nil {
		return ui.Options{}, err
	}
	options, err := f.optionsOf(config, version)
	if err != nil {
		return options, err
	}
	options.Fallback, options.Namespace, options.Context = namespace, f.Namespace, f.Context
	options.Metrics, err = f.metrics(config, options.Control, cmp.Or(options.Namespace, namespace))
	return options, err
}

// optionsOf returns the options for a client configuration, except for its namespaces and metrics.
func (f *flags) optionsOf(config *rest.Config, version string) (ui.Options, error) {
	options := ui.Options{Version: version, Cluster: config.Host}
	// Client-side rate limits are meant for controllers, and would delay explanations behind each other.
	config.QPS = -1
	var err error
	if options.Control, err = connect.NewClient(relist.Config(config)); err != nil {
		return options, err
	}
	if options.Target, err = f.targetOf(options.Control); err != nil {
		return options, err
	}
	calls := rest.CopyConfig(config)
	if options.LastOutput, err = vm.LastOutput(calls); err != nil {
		return options, err
	}
	options.Console = func(ctx context.Context, key types.NamespacedName) (*websocket.Conn, error) {
		return vm.OpenConsole(ctx, calls, key)
	}
	options.Actions = actions{client: options.Control, config: calls, cluster: f.clusterFlags()}.all()
	return options, nil
}

func (f *flags) targetOf(control client.Reader) (client.Reader, error) {
	switch f.target {
	case "":
		return control, nil
	case connect.None:
		return nil, nil
	}
	config, _, err := connect.Named("--target-kubeconfig", f.target, "")
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return connect.NewClient(config)
}

// clusterFlags are the flags that select the same cluster in another command.
func (f *flags) clusterFlags() []string {
	if f.inCluster {
		return nil // users have kubeconfigs of their own
	}
	var all []string
	for _, flag := range []struct{ name, value string }{{"--dir", f.Dir}, {"--kubeconfig", f.File}, {"--context", f.Context}} {
		if flag.value != "" {
			all = append(all, flag.name, flag.value)
		}
	}
	return all
}

// open prints the link, and opens it in a browser. It returns a function that removes what it created.
func (f *flags) open(cmd *cobra.Command, link string) (remove func()) {
	fmt.Fprintf(cmd.OutOrStdout(), "Open this link, which works once:\n  %s\nCtrl-C stops the page.\n", link)
	if !f.browser {
		return func() {}
	}
	started, remove := openBrowser(link, cmd.ErrOrStderr())
	if started != nil {
		go started.Wait() // its result is not shown
	}
	return remove
}
