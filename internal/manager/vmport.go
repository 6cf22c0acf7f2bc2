package manager

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names of the ports of the Service.
const (
	portHypervisors  = "hypervisors"
	portSubresources = "subresources"
)

// vmPort is a port of a VM controller.
type vmPort struct {
	// name is the name of the Service's port that leads to this port.
	name   string
	listen func(context.Context) (net.Listener, error)
	// serve serves until the context is canceled. It closes the listener.
	serve func(context.Context, net.Listener) error
}

// vmPorts are the ports of a VM controller, the port for hypervisors first. Only the leader decides which
// hypervisor may run a VM, so only the leader opens them and directs the Service to them.
type vmPorts struct {
	cfg       VMService
	namespace string
	client    client.WithWatch
	ports     []vmPort
	log       logr.Logger
	// open is closed when hypervisors can connect.
	open    chan struct{}
	opening sync.Once
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (p *vmPorts) NeedLeaderElection() bool { return true }

// Start serves until the context is canceled.
func (p *vmPorts) Start(ctx context.Context) error {
	here := endpoint{address: p.cfg.Address, ports: map[string]int32{}}
	group, ctx := errgroup.WithContext(ctx)
	for _, port := range p.ports {
		listener, err := port.listen(ctx)
		if err != nil {
			err = fmt.Errorf("opening the port for %s: %w", port.name, err)
			group.Go(func() error { return err })
			break
		}
		if at, is := listener.Addr().(*net.TCPAddr); is {
			here.ports[port.name] = int32(at.Port)
		}
		group.Go(func() error { return port.serve(ctx, listener) })
	}
	if p.cfg.Name == "" {
		p.opened()
	} else {
		group.Go(func() error { p.lead(ctx, here); return nil })
	}
	return group.Wait()
}

func (p *vmPorts) opened() { p.opening.Do(func() { close(p.open) }) }

// endpoint is where the Service leads to.
type endpoint struct {
	address netip.Addr
	// ports are the port numbers by their names in the Service.
	ports map[string]int32
}

// leadPause is the time between two attempts to direct the Service to this process.
const leadPause = 500 * time.Millisecond

// lead keeps the Service directed to this process until the context is canceled.
func (p *vmPorts) lead(ctx context.Context, here endpoint) {
	pause := time.NewTicker(leadPause)
	defer pause.Stop()
	for ctx.Err() == nil {
		if err := p.leadOnce(ctx, here); err != nil && ctx.Err() == nil {
			p.log.Error(err, "cannot direct the service to this process; new connections of hypervisors fail", "service", p.cfg.Name)
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

// leadOnce directs the Service to this process, and returns when the Service may lead elsewhere.
func (p *vmPorts) leadOnce(ctx context.Context, here endpoint) error {
	// The watch begins before the write, so that no change after it is missed.
	changes, err := p.client.Watch(ctx, &discoveryv1.EndpointSliceList{}, client.InNamespace(p.namespace), client.MatchingFields{"metadata.name": p.cfg.Name})
	if err != nil {
		return fmt.Errorf("watching endpoint slice %s: %w", p.cfg.Name, err)
	}
	defer changes.Stop()
	led, err := p.apply(ctx, here)
	if err != nil {
		return err
	}
	p.opened()
	for change := range changes.ResultChan() {
		slice, is := change.Object.(*discoveryv1.EndpointSlice)
		if !is || change.Type == watch.Deleted || !led.is(slice) {
			return nil
		}
	}
	return nil
}

// is reports whether a slice leads to this endpoint and nowhere else.
func (e endpoint) is(slice *discoveryv1.EndpointSlice) bool {
	if len(slice.Endpoints) != 1 || len(slice.Endpoints[0].Addresses) != 1 || len(slice.Ports) != len(e.ports) {
		return false
	}
	for _, port := range slice.Ports {
		if number, is := e.ports[ptr.Deref(port.Name, "")]; !is || ptr.Deref(port.Port, 0) != number {
			return false
		}
	}
	return slice.Endpoints[0].Addresses[0] == e.address.String()
}

// of returns the endpoint with only the ports that the Service also has.
func (e endpoint) of(service *corev1.Service) endpoint {
	shared := endpoint{e.address, map[string]int32{}}
	for _, port := range service.Spec.Ports {
		if number, is := e.ports[port.Name]; is {
			shared.ports[port.Name] = number
		}
	}
	return shared
}

// apply writes the endpoints of the Service and returns them. The Service has no selector, because all replicas
// are ready and Kubernetes would direct it to all of them. The endpoints are deleted together with the Service.
func (p *vmPorts) apply(ctx context.Context, here endpoint) (endpoint, error) {
	service := &corev1.Service{}
	if err := p.client.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: p.cfg.Name}, service); err != nil {
		return here, fmt.Errorf("reading service %s: %w", p.cfg.Name, err)
	}
	led := here.of(service)
	if led.ports[portHypervisors] == 0 || len(service.Spec.Selector) > 0 {
		return here, fmt.Errorf("service %s must have a port named %s and no selector", p.cfg.Name, portHypervisors)
	}
	if err := p.client.Apply(ctx, led.slice(service), client.FieldOwner(VMLease), client.ForceOwnership); err != nil {
		return here, fmt.Errorf("writing endpoint slice %s: %w", p.cfg.Name, err)
	}
	return led, nil
}

// slice returns the endpoint slice that directs a Service to this endpoint.
func (e endpoint) slice(service *corev1.Service) *discoveryv1ac.EndpointSliceApplyConfiguration {
	family := discoveryv1.AddressTypeIPv4
	if !e.address.Is4() {
		family = discoveryv1.AddressTypeIPv6
	}
	slice := discoveryv1ac.EndpointSlice(service.Name, service.Namespace).
		WithLabels(map[string]string{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: VMLease}).
		WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion("v1").WithKind("Service").WithName(service.Name).WithUID(service.UID)).
		WithAddressType(family).
		WithEndpoints(discoveryv1ac.Endpoint().WithAddresses(e.address.String()).WithConditions(discoveryv1ac.EndpointConditions().WithReady(true)))
	for _, name := range slices.Sorted(maps.Keys(e.ports)) {
		slice.WithPorts(discoveryv1ac.EndpointPort().WithName(name).WithPort(e.ports[name]).WithProtocol(corev1.ProtocolTCP))
	}
	return slice
}
