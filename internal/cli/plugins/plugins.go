// Package plugins configures the endpoints at which drivers in other processes register.
package plugins

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/pluginserver"
)

// Flags configure where drivers in other processes register. With the zero value, none can.
type Flags struct {
	// Socket is the path of a unix socket.
	Socket string
	// Listen is a TCP address. It requires Files unless Insecure is set.
	Listen string
	// Files are the files of the TLS server at Listen.
	Files plugin.Files
	// Insecure serves Listen, a loopback address, without TLS.
	Insecure bool
	// Version is the version of this program, which drivers log. It has no flag.
	Version string
}

// Add adds the flags to those of a command.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Socket, "driver-socket", "", "path of a unix socket with mode 0600 at which drivers in other processes register")
	flags.StringVar(&f.Listen, "driver-listen", "", "host:port at which drivers in other processes register, with a client certificate")
	flags.StringVar(&f.Files.Certificate, "driver-tls-cert-file", "", "TLS certificate for --driver-listen")
	flags.StringVar(&f.Files.Key, "driver-tls-private-key-file", "", "private key of --driver-tls-cert-file")
	flags.StringVar(&f.Files.CA, "driver-client-ca-file", "", "certificate authorities of the drivers; the common name or a DNS name of a driver's certificate must be its kind")
	flags.BoolVar(&f.Insecure, "driver-insecure-loopback", false, "serve --driver-listen, which must be a loopback address, without TLS: every process on the host can register")
}

// Serve reports whether there is any endpoint.
func (f *Flags) Serve() bool { return f.Socket != "" || f.Listen != "" }

// Validate returns all mistakes in the flags.
func (f *Flags) Validate() error {
	var wrong args.Problems
	files := f.Files != plugin.Files{}
	wrong.If(f.Listen == "" && (files || f.Insecure), "--driver-tls-cert-file, --driver-tls-private-key-file, --driver-client-ca-file, --driver-insecure-loopback: require --driver-listen")
	if f.Listen == "" {
		return wrong.Err()
	}
	whole := f.Files.Certificate != "" && f.Files.Key != "" && f.Files.CA != ""
	switch {
	case f.Insecure && files:
		wrong.If(true, "--driver-insecure-loopback: cannot be used with --driver-tls-cert-file, --driver-tls-private-key-file and --driver-client-ca-file")
	case f.Insecure:
		err := pluginserver.CheckLoopback(f.Listen)
		wrong.If(err != nil, "--driver-listen: %v", err)
	case !whole:
		wrong.If(true, "--driver-listen: requires --driver-tls-cert-file, --driver-tls-private-key-file and --driver-client-ca-file or, on a loopback address, --driver-insecure-loopback")
	default:
		err := f.Files.Check()
		wrong.If(err != nil, "--driver-listen: %v", err)
	}
	return wrong.Err()
}

// Open opens the endpoints. Nothing is served yet.
func (f *Flags) Open() ([]*pluginserver.Endpoint, error) {
	var opened []*pluginserver.Endpoint
	for _, open := range f.openers() {
		endpoint, err := open()
		if err != nil {
			for _, other := range opened {
				_ = other.Close()
			}
			return nil, fmt.Errorf("cannot serve drivers: %w", err)
		}
		opened = append(opened, endpoint)
	}
	return opened, nil
}

func (f *Flags) openers() []func() (*pluginserver.Endpoint, error) {
	var all []func() (*pluginserver.Endpoint, error)
	if f.Socket != "" {
		all = append(all, func() (*pluginserver.Endpoint, error) { return pluginserver.Socket(f.Socket) })
	}
	switch {
	case f.Listen == "":
	case f.Insecure:
		all = append(all, func() (*pluginserver.Endpoint, error) { return pluginserver.Loopback(f.Listen) })
	default:
		all = append(all, func() (*pluginserver.Endpoint, error) { return pluginserver.TLS(f.Listen, f.Files) })
	}
	return all
}
