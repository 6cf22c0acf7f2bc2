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

// flags say where the manager is, and how the driver is run.
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
	set.StringVar(&f.target, "target", "", "where the manager serves drivers: unix:///PATH of its --driver-socket, or HOST:PORT of its --driver-listen; required")
	set.StringVar(&f.files.Certificate, "tls-cert-file", "", "the driver's certificate, for HOST:PORT; its common name or a DNS name of it is the name of the driver")
	set.StringVar(&f.files.Key, "tls-private-key-file", "", "private key of that certificate")
	set.StringVar(&f.files.CA, "tls-ca-file", "", "certificate authorities of the manager")
	set.BoolVar(&f.insecureLoopback, "insecure-loopback", false, "connect without TLS to HOST:PORT, which must be a loopback address: Secrets are sent in the clear")
	set.IntVar(&f.maxOperations, "max-operations", 50, "how many operations run at the same time, 1 to 1000")
	set.DurationVar(&f.maxReconnectDelay, "max-reconnect-delay", 5*time.Second, "longest pause between two tries to connect; the first one is 200ms, and each doubles")
	set.StringVar(&f.installation, "installation", "", "name of the installation, by which the driver may label its VMs; must not change")
	set.StringVar(&f.healthAddress, "health-address", "", "host:port of /healthz and, 200 while the driver is registered, /readyz; empty for none")
	f.logging.Add(set)
}

func (f *flags) validate() error {
	var wrong args.Problems
	wrong.If(f.target == "", "--target: required")
	wrong.If(f.maxOperations < 1 || f.maxOperations > 1000, "--max-operations: %d is not between 1 and 1000", f.maxOperations)
	wrong.If(f.maxReconnectDelay <= 0, "--max-reconnect-delay: %v is not above 0s", f.maxReconnectDelay)
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
		return errors.New("--tls-cert-file, --tls-private-key-file, --tls-ca-file, --insecure-loopback: are not for a unix socket")
	case f.socket():
		return nil
	case f.insecureLoopback && files:
		return errors.New("--insecure-loopback: excludes --tls-cert-file, --tls-private-key-file and --tls-ca-file")
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
			return errors.New("--target: HOST:PORT needs --tls-cert-file, --tls-private-key-file and --tls-ca-file; or, on the loopback, --insecure-loopback")
		}
	}
	return nil
}

// credentials are those of the connection. The error names the file that cannot be used.
func (f *flags) credentials() (credentials.TransportCredentials, error) {
	if f.socket() || f.insecureLoopback {
		return insecure.NewCredentials(), nil
	}
	return plugin.TLS(f.files)
}

// options are those of package plugin.
func (f *flags) options(kind, version string, connected func(bool)) (plugin.Options, error) {
	with, err := f.credentials()
	if err != nil {
		return plugin.Options{}, err
	}
	const longest = 63 // what a registration may have
	version = cmp.Or(version, "devel")
	return plugin.Options{
		Kind: kind, Version: version[:min(len(version), longest)], Target: f.target, Credentials: with,
		MaxOperations: f.maxOperations, MaxReconnectDelay: f.maxReconnectDelay, Connected: connected,
	}, nil
}
