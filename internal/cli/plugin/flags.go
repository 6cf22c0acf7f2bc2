package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/logging"
	"github.com/millwright-dev/millwright/internal/pluginserver"
)

// flags locate the manager, and configure how the driver runs.
type flags struct {
	target            string
	files             plugin.Files
	insecureLoopback  bool
	maxOperations     int
	maxReconnectDelay time.Duration
	installation      string
	healthAddress     string
	logging           logging.Flags
}

func (f *flags) add(set *pflag.FlagSet) {
	set.StringVar(&f.target, "target", "", "address at which the manager serves drivers: unix:///PATH of its --driver-socket, or HOST:PORT of its --driver-listen; required")
	set.StringVar(&f.files.Certificate, "tls-cert-file", "", "TLS certificate of the driver, for HOST:PORT; its common name or one of its DNS names must be the name of the driver")
	set.StringVar(&f.files.Key, "tls-private-key-file", "", "private key of --tls-cert-file")
	set.StringVar(&f.files.CA, "tls-ca-file", "", "certificate authorities of the manager")
	set.BoolVar(&f.insecureLoopback, "insecure-loopback", false, "connect without TLS to HOST:PORT, which must be a loopback address: Secrets are sent unencrypted")
	set.IntVar(&f.maxOperations, "max-operations", 50, "maximum number of concurrent operations, 1 to 1000")
	set.DurationVar(&f.maxReconnectDelay, "max-reconnect-delay", 5*time.Second, "maximum delay between two attempts to connect; it starts at 200ms and doubles each time")
	set.StringVar(&f.installation, "installation", "", "name of the installation, with which the driver may label its VMs; must not change")
	set.StringVar(&f.healthAddress, "health-address", "", "host:port on which to serve /healthz and /readyz, which returns 200 while the driver is registered; empty to disable")
	f.logging.Add(set)
}

func (f *flags) validate() error {
	var wrong args.Problems
	wrong.If(f.target == "", "--target: required")
	wrong.If(f.maxOperations < 1 || f.maxOperations > 1000, "--max-operations: %d is not between 1 and 1000", f.maxOperations)
	wrong.If(f.maxReconnectDelay <= 0, "--max-reconnect-delay: %v is not greater than 0", f.maxReconnectDelay)
	if f.healthAddress != "" {
		_, _, err := net.SplitHostPort(f.healthAddress)
		wrong.If(err != nil, "--health-address: %v", err)
	}
	if err := f.validateTLS(); err != nil {
		wrong = append(wrong, err)
	}
	return wrong.Err()
}

func (f *flags) socket() bool { return strings.HasPrefix(f.target, "unix:") }

func (f *flags) validateTLS() error {
	files := f.files != plugin.Files{}
	switch {
	case f.target == "":
		return nil
	case f.socket() && (files || f.insecureLoopback):
		return errors.New("--tls-cert-file, --tls-private-key-file, --tls-ca-file, --insecure-loopback: cannot be used with a unix socket")
	case f.socket():
		return nil
	case f.insecureLoopback && files:
		return errors.New("--insecure-loopback: cannot be used with --tls-cert-file, --tls-private-key-file and --tls-ca-file")
	case f.insecureLoopback:
		if err := pluginserver.CheckLoopback(f.target); err != nil {
			return fmt.Errorf("--target: %w", err)
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(f.target); err != nil {
		return fmt.Errorf("--target: %q is neither unix:///PATH nor HOST:PORT", f.target)
	}
	for _, path := range []string{f.files.Certificate, f.files.Key, f.files.CA} {
		if path == "" {
			return errors.New("--target: HOST:PORT requires --tls-cert-file, --tls-private-key-file and --tls-ca-file or, on a loopback address, --insecure-loopback")
		}
	}
	return nil
}

// credentials returns the credentials of the connection. The error names the file that cannot be used.
func (f *flags) credentials() (credentials.TransportCredentials, error) {
	if f.socket() || f.insecureLoopback {
		return insecure.NewCredentials(), nil
	}
	return plugin.TLS(f.files)
}

// options returns the options of package plugin.
func (f *flags) options(kind, version string, connected func(bool)) (plugin.Options, error) {
	with, err := f.credentials()
	if err != nil {
		return plugin.Options{}, err
	}
	const longest = 63 // limit of a registration
	version = cmp.Or(version, "devel")
	return plugin.Options{
		Kind: kind, Version: version[:min(len(version), longest)], Target: f.target, Credentials: with,
		MaxOperations: f.maxOperations, MaxReconnectDelay: f.maxReconnectDelay, Connected: connected,
	}, nil
}
