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

// VMAPI configures how kube-apiserver reaches the subresources of virtual machines, such as console and migrate.
type VMAPI struct {
	// Listen opens the port when this process becomes the leader. If nil, there are no subresources.
	Listen func(context.Context) (net.Listener, error)
	// Service is the Service that leads to that port of the leader. It must exist.
	Service types.NamespacedName
	// Port is the port of the Service. 0 means the port that is named subresources.
	Port int32
}

// vmAPI is the server of the subresources.
type vmAPI struct {
	VMAPI
	server    *subresources.Server
	client    client.Client
	authority *identity.Authority
	log       logr.Logger
}

// newVMAPI returns the port for the subresources.
func newVMAPI(cfg VMConfig, vms *virtualmachine.Controller, live client.Client, authority *identity.Authority) (vmPort, error) {
	server, err := vms.Subresources(cfg.Infrastructure, subresources.ServerName(cfg.API.Service), cfg.Log.WithName("api"))
	if err != nil {
		return vmPort{}, err
	}
	api := &vmAPI{cfg.API, server, live, authority, cfg.Log.WithName("api")}
	return vmPort{name: portSubresources, listen: cfg.API.Listen, serve: api.serve}, nil
}

// serve serves until the context is canceled.
func (a *vmAPI) serve(ctx context.Context, listener net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.server.Serve(ctx, listener) })
	group.Go(func() error { a.register(ctx); return nil })
	return group.Wait()
}

// Intervals between checks of the registration.
const (
	registerPause  = 5 * time.Second // after a failure
	registerPeriod = time.Minute     // it may have been deleted
)

// register keeps this process registered at kube-apiserver until the context is canceled. Virtual machines do
// not depend on it.
func (a *vmAPI) register(ctx context.Context) {
	lastError := ""
	for ctx.Err() == nil {
		pause := registerPeriod
		err := a.registerOnce(ctx)
		switch {
		case err == nil:
			lastError = ""
		case ctx.Err() == nil:
			pause = registerPause
			if err.Error() != lastError {
				a.log.Error(err, "consoles of virtual machines cannot be reached")
			}
			lastError = err.Error()
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
	return subresources.Register(ctx, a.client, a.Service, port, a.authority.Bundle())
}
