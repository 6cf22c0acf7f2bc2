package cluster

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/millwright-dev/millwright/examples"
	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/internal/local/directory"
)

// examplesDir returns the directory of the cluster's examples. They are written at each start.
func (m *local) examplesDir() string { return filepath.Join(m.dir, "examples") }

// exampleSources returns the directory of the examples for the cluster's driver and guest in package examples.
func (m *local) exampleSources() string {
	switch {
	case m.Driver.Name == localdir.DriverSim:
		return "sim"
	case m.guest == guestFull:
		return "full"
	}
	return "."
}

// writeExamples writes the examples with the addresses of this cluster.
func (m *local) writeExamples(context.Context, *errgroup.Group) error {
	addresses := strings.NewReplacer(
		serverURL(defaultNetwork, defaultAPIPort), serverURL(m.network, m.plane.Port()),
		imageURL(defaultImagePort), m.imageURL,
	)
	paths, err := fs.Glob(examples.Files, path.Join(m.exampleSources(), "*.yaml"))
	if err == nil {
		err = os.RemoveAll(m.examplesDir()) // those of another guest
	}
	if err == nil {
		err = os.MkdirAll(m.examplesDir(), 0o700)
	}
	for i := 0; i < len(paths) && err == nil; i++ {
		var text []byte
		if text, err = fs.ReadFile(examples.Files, paths[i]); err == nil {
			err = directory.WriteFile(filepath.Join(m.examplesDir(), path.Base(paths[i])), []byte(addresses.Replace(string(text))))
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write the examples: %w", err)
	}
	return nil
}

// serverURL returns the URL at which guests of a network reach the API server.
func serverURL(network netip.Prefix, port int) string {
	return "https://" + net.JoinHostPort(gatewayOf(network).String(), strconv.Itoa(port))
}
