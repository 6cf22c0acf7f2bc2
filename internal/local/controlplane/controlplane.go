package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/millwright-dev/millwright/internal/local/folder"
	"github.com/millwright-dev/millwright/internal/local/supervisor"
)

// ControlPlane is a running control plane. Its methods may be called from several
// goroutines at once.
type ControlPlane struct {
	config     Config
	dir        layout
	log        logr.Logger
	lock       *os.File
	ports      ports
	pki        pki
	components []*supervisor.Child // in the order in which they start

	mu       sync.Mutex
	children []*supervisor.Child // see StartChild
	stopped  bool
}

// startTimeout bounds Start where the context does not. On an idle machine it
// takes seconds; a busy one may take a multiple of that.
const startTimeout = 3 * time.Minute

// Start starts a control plane and returns when all its components are ready. The
// context is only for the start; the children run until Stop, or until this
// process ends. After an error nothing is left running.
//
// The errors include *InUseError if another process uses the folder,
// *PortTakenError if Config.APIServerPort is taken, and ErrBinariesMissing.
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
	if err := cp.start(ctx); err != nil {
		return nil, errors.Join(err, cp.Stop(context.Background()))
	}
	cp.log.Info("control plane is ready", "url", cp.URL(), "after", time.Since(began).Round(time.Millisecond), "dir", config.Dir)
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{cp.endLeftOvers, cp.prepare, cp.startComponents} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// endLeftOvers ends the components that a killed process left behind, in the order of
// Stop. We hold the lock, so their parent is dead.
func (cp *ControlPlane) endLeftOvers(ctx context.Context) error {
	for _, name := range []string{Scheduler, ControllerManager, APIServer, Etcd} {
		found, err := supervisor.EndLeftOver(ctx, cp.dir.pidFile(name), graces[name])
		if err != nil {
			return fmt.Errorf("ending the %s that an earlier process left behind: %w", name, err)
		}
		if found {
			cp.log.Info("ended a child that an earlier process left behind", "component", name)
		}
	}
	return nil
}

// prepare writes all files and builds the components.
func (cp *ControlPlane) prepare(context.Context) error {
	var err error
	if cp.ports, err = choosePorts(cp.dir.ports(), cp.config.APIServerPort); err != nil {
		return fmt.Errorf("choosing ports for %s: %w", cp.config.Name, err)
	}
	if cp.pki, err = ensurePKI(cp.dir, cp.config.ServerNames, time.Now()); err != nil {
		return fmt.Errorf("preparing the certificates in %s: %w", cp.dir.pki(""), err)
	}
	if err := cp.writeKubeconfigs(); err != nil {
		return err
	}
	if cp.config.AuditLog {
		if err := errors.Join(folder.WriteFile(cp.dir.auditPolicy(), []byte(auditPolicy)), folder.WriteFile(cp.dir.auditLog(), nil)); err != nil {
			return fmt.Errorf("preparing the audit log: %w", err)
		}
	}
	for _, name := range cp.config.components() {
		component, err := supervisor.New(cp.program(name))
		if err != nil {
			return err
		}
		cp.components = append(cp.components, component)
	}
	return nil
}

// startComponents starts etcd, then the apiserver, then the rest at the same time.
// Nobody gains by an earlier start: an apiserver that finds no etcd, and a manager
// that finds no apiserver, back off for a second or give up.
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

// Stop ends the components in order: scheduler, controller manager, apiserver,
// etcd. It takes at most about ten seconds, since a component that does not end
// in its time is killed; when the context ends, so are all that still run. The
// data stays. A second Stop does nothing.
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
	// The lock goes last: from here on the folder may belong to somebody else.
	problems = append(problems, cp.lock.Close())
	return errors.Join(problems...)
}

// WaitReady waits until all components that are not stopped by StopComponent
// answer, also through restarts.
func (cp *ControlPlane) WaitReady(ctx context.Context) error {
	for _, c := range cp.all() {
		if !c.Started() {
			continue
		}
		if err := c.AwaitReady(ctx, false); err != nil {
			return err
		}
	}
	return nil
}

// Kill ends the child of the named component at once, as a crash would, and
// returns when it is gone. It is started again about a second later.
func (cp *ControlPlane) Kill(name string) error {
	c, err := cp.component(name)
	if err != nil {
		return err
	}
	return c.Kill()
}

// StopComponent ends the named component in an orderly way, or at once when the
// context ends, and keeps it stopped until StartComponent.
func (cp *ControlPlane) StopComponent(ctx context.Context, name string) error {
	c, err := cp.component(name)
	if err != nil {
		return err
	}
	return c.Stop(ctx)
}

// StartComponent starts the named component after StopComponent and returns when
// it is ready. If it runs already, only its readiness is awaited.
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

// all returns the components and children that there are now.
func (cp *ControlPlane) all() []*supervisor.Child {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return slices.Concat(cp.components, cp.children)
}

// URL returns where kube-apiserver listens, such as https://127.0.0.1:20345.
func (cp *ControlPlane) URL() string { return loopbackURL(cp.ports.APIServer) }

// Port returns the TCP port of kube-apiserver on 127.0.0.1.
func (cp *ControlPlane) Port() int { return cp.ports.APIServer }

// Dir returns the folder of this control plane, as an absolute path.
func (cp *ControlPlane) Dir() string { return string(cp.dir) }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (cp *ControlPlane) Kubeconfig() string { return cp.dir.kubeconfig() }

// AuditLogPath returns the file in which kube-apiserver records requests: one
// audit.k8s.io/v1 Event in JSON per line, written before the request counts as
// done. It is "" without Config.AuditLog.
func (cp *ControlPlane) AuditLogPath() string {
	if !cp.config.AuditLog {
		return ""
	}
	return cp.dir.auditLog()
}

// CAData returns the certificate authority of kube-apiserver and of clients in PEM form.
func (cp *ControlPlane) CAData() []byte { return cp.pki[clusterCA].CertPEM() }

func portFlag(port int) string { return "--secure-port=" + strconv.Itoa(port) }
