package manager

import (
	"context"
	"errors"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/driver/plugin/server"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/args"
)

// PluginFlags say where drivers of other processes register. With the zero value none can.
type PluginFlags struct {
	// Socket is the path of a unix socket.
	Socket string
	// Listen is a TCP address, for which Files are required unless Insecure is set.
	Listen string
	// Files are those of the TLS server at Listen.
	Files plugin.Files
	// Insecure serves Listen, a loopback address, without TLS.
	Insecure bool
}

func (f *PluginFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Socket, "driver-socket", "", "path of a unix socket, of mode 0600, at which drivers in other processes register")
	flags.StringVar(&f.Listen, "driver-listen", "", "host:port at which drivers in other processes register, with a client certificate")
	flags.StringVar(&f.Files.Certificate, "driver-tls-cert-file", "", "certificate for --driver-listen")
	flags.StringVar(&f.Files.Key, "driver-tls-private-key-file", "", "private key of that certificate")
	flags.StringVar(&f.Files.CA, "driver-client-ca-file", "", "certificate authorities of the drivers; a certificate is for the kind of driver that is its common name or a DNS name of it")
	flags.BoolVar(&f.Insecure, "driver-insecure-loopback", false, "serve --driver-listen, which must be a loopback address, without TLS: every process of the host may register")
}

// serve reports whether there is any endpoint.
func (f *PluginFlags) serve() bool { return f.Socket != "" || f.Listen != "" }

func (f *PluginFlags) validate() error {
	var wrong args.Problems
	files := f.Files != plugin.Files{}
	wrong.If(f.Listen == "" && (files || f.Insecure), "--driver-tls-cert-file, --driver-tls-private-key-file, --driver-client-ca-file, --driver-insecure-loopback: need --driver-listen")
	if f.Listen == "" {
		return wrong.Err()
	}
	whole := f.Files.Certificate != "" && f.Files.Key != "" && f.Files.CA != ""
	switch {
	case f.Insecure && files:
		wrong.If(true, "--driver-insecure-loopback: excludes --driver-tls-cert-file, --driver-tls-private-key-file and --driver-client-ca-file")
	case f.Insecure:
		err := server.CheckLoopback(f.Listen)
		wrong.If(err != nil, "--driver-listen: %v", err)
	case !whole:
		wrong.If(true, "--driver-listen: needs --driver-tls-cert-file, --driver-tls-private-key-file and --driver-client-ca-file; or, on the loopback, --driver-insecure-loopback")
	default:
		err := f.Files.Check()
		wrong.If(err != nil, "--driver-listen: %v", err)
	}
	return wrong.Err()
}

// plugins serves drivers of other processes. Only the leader does: drivers that find the other
// manager deaf try again until they find this one.
type plugins struct {
	flags  PluginFlags
	server *server.Server
}

func newPlugins(flags PluginFlags, drivers *registry.Registry, log logr.Logger) *plugins {
	return &plugins{flags: flags, server: server.New(server.Options{
		Add: func(kind string, d *server.Driver) error {
			_, err := drivers.Register(kind, d)
			if errors.Is(err, registry.ErrTaken) {
				return errors.New("the manager has a driver of that name itself")
			}
			return err
		},
		Log: log.WithName("drivers"), Registerer: metrics.Registry,
	})}
}

// Start implements manager.Runnable.
func (p *plugins) Start(ctx context.Context) error {
	var endpoints []*server.Endpoint
	for _, open := range p.openers() {
		endpoint, err := open()
		if err != nil {
			for _, opened := range endpoints {
				_ = opened.Close()
			}
			return err
		}
		endpoints = append(endpoints, endpoint)
	}
	all, ctx := errgroup.WithContext(ctx)
	for _, endpoint := range endpoints {
		all.Go(func() error { return p.server.Serve(ctx, endpoint) })
	}
	return all.Wait()
}

func (p *plugins) openers() []func() (*server.Endpoint, error) {
	var all []func() (*server.Endpoint, error)
	if p.flags.Socket != "" {
		all = append(all, func() (*server.Endpoint, error) { return server.Socket(p.flags.Socket) })
	}
	switch {
	case p.flags.Listen == "":
	case p.flags.Insecure:
		all = append(all, func() (*server.Endpoint, error) { return server.Loopback(p.flags.Listen) })
	default:
		all = append(all, func() (*server.Endpoint, error) { return server.TLS(p.flags.Listen, p.flags.Files) })
	}
	return all
}
