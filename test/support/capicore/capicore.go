// Package capicore runs the core of Cluster API, which hack/capi.sh builds, next to a control plane.
package capicore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
)

// Newest is the newest version of Cluster API for which test/suites/capi has a module.
const Newest = "v1.14.2"

//go:embed crd/*.yaml
var stubs embed.FS

// InstallStubs makes an API server serve the kinds of stub.millwright.dev, which replace a control plane provider and a bootstrap
// provider.
func InstallStubs(ctx context.Context, config *rest.Config) error {
	crds, err := fs.Sub(stubs, "crd")
	if err != nil {
		return err
	}
	return controlplane.InstallCRDs(ctx, config, crds)
}

// File returns the path of a file of a version that hack/capi.sh has built.
func File(version string, path ...string) (string, error) {
	cache, err := localdir.Cache()
	if err != nil {
		return "", err
	}
	file := filepath.Join(append([]string{cache, "capi-" + version, "current"}, path...)...)
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("run hack/capi.sh %s to build Cluster API: %w", version, err)
	}
	return file, nil
}

// Core is a core manager. All fields except Groups and Flags are required.
type Core struct {
	// Version is the version of Cluster API.
	Version string
	// User is the user of the core, and the name of its process, directory and webhooks.
	User string
	// Groups are the groups of the user, whose permissions must exist.
	Groups []string
	// Features are the feature gates.
	Features string
	// Flags are additional flags.
	Flags []string
}

// Start installs the kinds of the core, starts it next to a control plane, and registers its webhooks when it is ready.
// It stops with the control plane.
func (c Core) Start(ctx context.Context, plane *controlplane.ControlPlane) error {
	access := plane.RESTConfig()
	crds, err := File(c.Version, "crd")
	if err != nil {
		return err
	}
	if err := controlplane.InstallCRDs(ctx, access, os.DirFS(crds)); err != nil {
		return err
	}
	manifest, err := File(c.Version, "webhook", "manifests.yaml")
	if err != nil {
		return err
	}
	dir := filepath.Join(plane.Dir(), c.User)
	certificate, err := WriteCertificate(dir)
	if err != nil {
		return err
	}
	port, err := c.run(ctx, plane, dir)
	if err != nil {
		return err
	}
	admin, err := client.New(access, client.Options{Scheme: env.NewScheme()})
	if err != nil {
		return err
	}
	if err := Convert(ctx, admin, crds, port, certificate); err != nil {
		return err
	}
	return Register(ctx, admin, manifest, Registration{Name: c.User, Port: port, CABundle: certificate})
}

// run starts the program, and returns the port of its webhooks once it is ready.
func (c Core) run(ctx context.Context, plane *controlplane.ControlPlane, dir string) (webhooks int, err error) {
	path, err := File(c.Version, "core")
	if err != nil {
		return 0, err
	}
	var ports [3]int
	for i, use := range []string{"webhooks", "health", "diagnostics"} {
		if ports[i], err = plane.PortFor(c.User+"-"+use, 0); err != nil {
			return 0, err
		}
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := plane.WriteKubeconfig(kubeconfig, c.User, c.Groups...); err != nil {
		return 0, err
	}
	err = plane.StartChild(ctx, controlplane.Child{
		Name: c.User, Path: path, Grace: 10 * time.Second,
		Args: append([]string{
			"--kubeconfig", kubeconfig, "--feature-gates", c.Features,
			"--webhook-port", fmt.Sprint(ports[0]), "--webhook-cert-dir", dir,
			"--health-addr", fmt.Sprintf("127.0.0.1:%d", ports[1]),
			"--diagnostics-address", fmt.Sprintf("127.0.0.1:%d", ports[2]), "--insecure-diagnostics",
		}, c.Flags...),
	})
	if err != nil {
		return 0, err
	}
	return ports[0], AwaitReady(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", ports[1]))
}

// WriteCertificate creates the serving certificate of a manager's webhooks in a directory, and returns it.
func WriteCertificate(dir string) ([]byte, error) {
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, err
	}
	return certificate, errors.Join(os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
}

// readyTimeout is how long a manager may take to start. Its caches wait for each CRD.
const readyTimeout = env.WaitTimeout

// AwaitReady waits until the health endpoint of a manager responds.
func AwaitReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the manager is not ready after %v: %w", readyTimeout, errors.Join(ctx.Err(), err))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
