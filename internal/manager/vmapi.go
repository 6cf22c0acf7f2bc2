package manager

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/subresources"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// VMAPI says how kube-apiserver reaches the subresources of virtual machines: console, log, reset and migrate.
type VMAPI struct {
	// Listen opens the port, when this process leads. Nil means that there are no subresources.
	Listen func(context.Context) (net.Listener, error)
	// Service leads to that port, at the process that leads. It must exist.
	Service types.NamespacedName
	// Port of the Service. 0 means that of the listener.
	Port int
}

// vmAPI is the server of the subresources.
type vmAPI struct {
	VMAPI
	server    *subresources.Server
	client    client.Client
	authority []byte
	log       logr.Logger
}

// addVMAPI adds the server of the subresources.
func addVMAPI(mgr ctrl.Manager, cfg VMConfig, vms *virtualmachine.Controller, live client.Client, authority *identity.Authority) error {
	if cfg.API.Listen == nil {
		return nil
	}
	server, err := vms.Subresources(cfg.Infrastructure, subresources.ServerName(cfg.API.Service), cfg.Log.WithName("api"))
	if err != nil {
		return err
	}
	certificate, _ := authority.PEM()
	if err := mgr.Add(&vmAPI{cfg.API, server, live, certificate, cfg.Log.WithName("api")}); err != nil {
		return fmt.Errorf("adding the subresources of virtual machines: %w", err)
	}
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: hypervisors report to the leader.
func (a *vmAPI) NeedLeaderElection() bool { return true }

// Start serves until the context ends.
func (a *vmAPI) Start(ctx context.Context) error {
	listener, err := a.Listen(ctx)
	if err != nil {
		return fmt.Errorf("opening the port for subresources of virtual machines: %w", err)
	}
	port := a.Port
	if at, is := listener.Addr().(*net.TCPAddr); is && port == 0 {
		port = at.Port
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.server.Serve(ctx, listener) })
	group.Go(func() error { a.register(ctx, port); return nil })
	return group.Wait()
}

// registerPause is the time between two attempts to register.
const registerPause = 5 * time.Second

// register tries until it succeeds: virtual machines run without it.
func (a *vmAPI) register(ctx context.Context, port int) {
	for {
		err := subresources.Register(ctx, a.client, a.Service, port, a.authority)
		if err == nil || ctx.Err() != nil {
			return
		}
		a.log.Error(err, "consoles of virtual machines cannot be reached")
		select {
		case <-time.After(registerPause):
		case <-ctx.Done():
			return
		}
	}
}
