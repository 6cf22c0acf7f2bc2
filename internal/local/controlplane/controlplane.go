// Package controlplane runs a Kubernetes control plane on this machine.
//
// [Start] runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler as supervised child processes
// on loopback ports, with their own certificates. Local mode and tests both use it. A process can run several
// control planes, each in its own directory.
//
// # Directory
//
//	kubeconfig      for the administrator
//	pki/            certificates and keys
//	credentials/    kubeconfigs of the components
//	etcd/           the data
//	logs/           one file per component
//	run/            one file per running child, for the next Start
//	ports.json      the ports, used again while they are free
//	lock            held while a process uses the folder
//
// # Orphaned children
//
// The kernel terminates children with their parent. If one survives, the next Start finds it by its file in
// run/, verifies by the start time that it is the same process, and terminates it.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/millwright-dev/millwright/internal/local/supervisor"
)

// ControlPlane is a running control plane. It is safe for concurrent use.
type ControlPlane struct {
	config     Config
	dir        layout
	log        logr.Logger
	lock       *os.File
	ports      ports
	held       reservations // of ports
	pki        pki
	components []*supervisor.Child // in the order in which they start

	mu       sync.Mutex
	children []*supervisor.Child // see StartChild
	stopped  bool
}

// startTimeout limits Start. On an idle machine it takes seconds.
const startTimeout = 3 * time.Minute

// Start starts a control plane and returns when all components are ready. The context only applies to the
// start; the components run until Stop, or until this process exits. After an error, nothing runs.
//
// It returns an *InUseError if another process uses the directory, a *PortTakenError if Config.APIServerPort is
// in use, and ErrBinariesMissing.
func Start(ctx context.Context, config Config) (*ControlPlane, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	cp := &ControlPlane{config: config, dir: layout(config.Dir), log: config.Logger.WithValues("controlPlane", config.Name)}
	if err := cp.dir.create(); err != nil {
		return nil, err
	}
	if cp.lock, err = lockDir(cp.dir); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	began := time.Now()
	err = endOrphans(ctx, cp.dir, cp.log)
	if err == nil {
		err = cp.prepare()
	}
	if err == nil {
		err = cp.startComponents(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, cp.Stop(context.Background()))
	}
	cp.log.Info("control plane is ready", "url", cp.URL(), "after", time.Since(began).Round(time.Millisecond), "dir", config.Dir)
	return cp, nil
}

// prepare writes all files.
func (cp *ControlPlane) prepare() error {
	var err error
	if cp.ports, err = choosePorts(cp.dir.ports(), cp.config.APIServerPort, &cp.held); err != nil {
		return fmt.Errorf("choosing ports for %s: %w", cp.config.Name, err)
	}
	if cp.pki, err = ensurePKI(cp.dir, cp.config.ServerNames, time.Now()); err != nil {
		return fmt.Errorf("preparing the certificates in %s: %w", cp.dir.pki(""), err)
	}
	if err := errors.Join(cp.writeKubeconfigs(), cp.writeEgress()); err != nil {
		return err
	}
	for _, c := range cp.config.components() {
		component, err := supervisor.New(cp.program(c))
		if err != nil {
			return err
		}
		cp.components = append(cp.components, component)
	}
	return nil
}

// startComponents starts etcd, then the API server, then the others concurrently. An earlier start would not
// save time: an API server without etcd, and a manager without an API server, back off or exit.
func (cp *ControlPlane) startComponents(ctx context.Context) error {
	etcd, apiserver, others := cp.components[:1], cp.components[1:2], cp.components[2:]
	for _, group := range [][]*supervisor.Child{etcd, apiserver, others} {
		for _, c := range group {
			c.Start()
		}
		for _, c := range group {
			if err := c.AwaitReady(ctx, true); err != nil {
				return fmt.Errorf("starting control plane %s: %w", cp.config.Name, err)
			}
		}
	}
	return nil
}

// Stop terminates the children, then the scheduler, the controller manager, the API server and etcd. The
// components take at most ten seconds: each is killed after its grace period, and all are killed when the
// context is done. The data is kept. A second Stop does nothing.
func (cp *ControlPlane) Stop(ctx context.Context) error {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if cp.stopped {
		return nil
	}
	cp.stopped = true
	var problems []error
	for _, c := range slices.Backward(slices.Concat(cp.components, cp.children)) {
		problems = append(problems, c.Stop(ctx))
	}
	// The lock is released last: then the directory may belong to another process.
	problems = append(problems, cp.held.release(), cp.lock.Close())
	return errors.Join(problems...)
}

// Kill kills the process of a component or child, as in a crash, and returns when it has exited. It is
// restarted about a second later.
func (cp *ControlPlane) Kill(name string) error {
	c, err := cp.component(name)
	if err != nil {
		return err
	}
	return c.Kill()
}

// StopComponent stops a component, gracefully until the context is done, and keeps it stopped until
// StartComponent.
func (cp *ControlPlane) StopComponent(ctx context.Context, name string) error {
	c, err := cp.component(name)
	if err != nil {
		return err
	}
	return c.Stop(ctx)
}

// StartComponent starts a component after StopComponent, and returns when it is ready. It does nothing if the
// component is running.
func (cp *ControlPlane) StartComponent(ctx context.Context, name string) error {
	c, err := cp.component(name)
	if err != nil {
		return err
	}
	cp.mu.Lock()
	if cp.stopped {
		cp.mu.Unlock()
		return fmt.Errorf("control plane %s is stopped", cp.config.Name)
	}
	c.Start()
	cp.mu.Unlock()
	return c.AwaitReady(ctx, true)
}

func (cp *ControlPlane) component(name string) (*supervisor.Child, error) {
	for _, c := range cp.all() {
		if c.Name == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("control plane %s has no component %q", cp.config.Name, name)
}

func (cp *ControlPlane) all() []*supervisor.Child {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return slices.Concat(cp.components, cp.children)
}

// URL returns the URL of kube-apiserver, such as https://127.0.0.1:20345.
func (cp *ControlPlane) URL() string { return loopbackURL(cp.ports.APIServer) }

// Port returns the TCP port of kube-apiserver on 127.0.0.1.
func (cp *ControlPlane) Port() int { return cp.ports.APIServer }

// Dir returns the absolute path of this control plane's directory.
func (cp *ControlPlane) Dir() string { return string(cp.dir) }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (cp *ControlPlane) Kubeconfig() string { return cp.dir.kubeconfig() }

// CAData returns the certificate authority of kube-apiserver and of its clients in PEM form.
func (cp *ControlPlane) CAData() []byte { return cp.pki[clusterCA].CertPEM() }
