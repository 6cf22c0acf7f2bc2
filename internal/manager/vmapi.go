package manager

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// Port of the Service. 0 means the one that is named subresources.
	Port int32
}

// vmAPI is the server of the subresources.
type vmAPI struct {
	VMAPI
	server    *subresources.Server
	client    client.Client
	authority []byte
	log       logr.Logger
}

// newVMAPI returns the port of the subresources.
func newVMAPI(cfg VMConfig, vms *virtualmachine.Controller, live client.Client, authority *identity.Authority) (vmPort, error) {
	server, err := vms.Subresources(cfg.Infrastructure, subresources.ServerName(cfg.API.Service), cfg.Log.WithName("api"))
	if err != nil {
		return vmPort{}, err
	}
	certificate, _ := authority.PEM()
	api := &vmAPI{cfg.API, server, live, certificate, cfg.Log.WithName("api")}
	return vmPort{name: portSubresources, listen: cfg.API.Listen, serve: api.serve}, nil
}

// serve serves until the context ends.
func (a *vmAPI) serve(ctx context.Context, listener net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.server.Serve(ctx, listener) })
	group.Go(func() error { a.register(ctx); return nil })
	return group.Wait()
}

// Times between two looks at the registration.
const (
	registerPause  = 5 * time.Second // it failed
	registerPeriod = time.Minute     // somebody may have deleted it
)

// register keeps kube-apiserver sending requests here until the context ends. Virtual machines run without it.
func (a *vmAPI) register(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		pause := registerPeriod
		err := a.registerOnce(ctx)
		switch {
		case err == nil:
			said = ""
		case ctx.Err() == nil:
			pause = registerPause
			if err.Error() != said {
				a.log.Error(err, "consoles of virtual machines cannot be reached")
			}
			said = err.Error()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func (a *vmAPI) registerOnce(ctx context.Context) error {
	port := a.Port
	if port == 0 {
		service := &corev1.Service{}
		if err := a.client.Get(ctx, a.Service, service); err != nil {
			return fmt.Errorf("reading service %s: %w", a.Service.Name, err)
		}
		at := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == portSubresources })
		if at < 0 {
			return fmt.Errorf("service %s has no port named %s", a.Service.Name, portSubresources)
		}
		port = service.Spec.Ports[at].Port
	}
	return subresources.Register(ctx, a.client, a.Service, port, a.authority)
}
