package manager

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// vmPort is the port for hypervisors. Only the leader decides which hypervisor may run a VM, so only it
// opens the port, and leads the Service to it.
type vmPort struct {
	cfg       VMService
	namespace string
	client    client.WithWatch
	serve     func(context.Context, net.Listener) error
	log       logr.Logger
	// open is closed when hypervisors can connect.
	open    chan struct{}
	opening sync.Once
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (p *vmPort) NeedLeaderElection() bool { return true }

// Start serves until the context ends.
func (p *vmPort) Start(ctx context.Context) error {
	listener, err := p.cfg.Listen(ctx)
	if err != nil {
		return fmt.Errorf("opening the port for hypervisors: %w", err)
	}
	if p.cfg.Name == "" {
		p.opened()
		return p.serve(ctx, listener)
	}
	ctx, cancel := context.WithCancel(ctx)
	led := make(chan struct{})
	go func() {
		defer close(led)
		p.lead(ctx, listener.Addr())
	}()
	defer func() { cancel(); <-led }()
	return p.serve(ctx, listener)
}

func (p *vmPort) opened() { p.opening.Do(func() { close(p.open) }) }

// leadPause is the time between two attempts to lead the Service here.
const leadPause = 500 * time.Millisecond

// lead keeps the Service leading to an address until the context ends.
func (p *vmPort) lead(ctx context.Context, to net.Addr) {
	pause := time.NewTicker(leadPause)
	defer pause.Stop()
	for ctx.Err() == nil {
		if err := p.leadOnce(ctx, to); err != nil && ctx.Err() == nil {
			p.log.Error(err, "hypervisors that connect anew do not reach this process", "service", p.cfg.Name)
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

// leadOnce has the Service lead here, and returns when it may not do so any more.
func (p *vmPort) leadOnce(ctx context.Context, to net.Addr) error {
	port, err := netip.ParseAddrPort(to.String())
	if err != nil {
		return fmt.Errorf("the port for hypervisors: %w", err)
	}
	here := netip.AddrPortFrom(p.cfg.Address, port.Port())
	if err := p.apply(ctx, here); err != nil {
		return err
	}
	p.opened()
	changes, err := p.client.Watch(ctx, &discoveryv1.EndpointSliceList{}, client.InNamespace(p.namespace), client.MatchingFields{"metadata.name": p.cfg.Name})
	if err != nil {
		return fmt.Errorf("watching endpoint slice %s: %w", p.cfg.Name, err)
	}
	defer changes.Stop()
	for change := range changes.ResultChan() {
		slice, is := change.Object.(*discoveryv1.EndpointSlice)
		if !is || change.Type == watch.Deleted || !leadsTo(slice, here) {
			return nil
		}
	}
	return nil
}

// leadsTo reports whether a slice has this address, and no other.
func leadsTo(slice *discoveryv1.EndpointSlice, here netip.AddrPort) bool {
	return len(slice.Endpoints) == 1 && len(slice.Ports) == 1 && len(slice.Endpoints[0].Addresses) == 1 &&
		slice.Endpoints[0].Addresses[0] == here.Addr().String() && slice.Ports[0].Port != nil && *slice.Ports[0].Port == int32(here.Port())
}

// apply writes the endpoints of the Service, which has no selector: all replicas are ready, and Kubernetes would
// lead it to all of them. With the Service they are deleted.
func (p *vmPort) apply(ctx context.Context, here netip.AddrPort) error {
	service := &corev1.Service{}
	if err := p.client.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: p.cfg.Name}, service); err != nil {
		return fmt.Errorf("reading service %s: %w", p.cfg.Name, err)
	}
	if len(service.Spec.Ports) != 1 || len(service.Spec.Selector) > 0 {
		return fmt.Errorf("service %s must have one port and no selector", p.cfg.Name)
	}
	family := discoveryv1.AddressTypeIPv4
	if !here.Addr().Is4() {
		family = discoveryv1.AddressTypeIPv6
	}
	slice := discoveryv1ac.EndpointSlice(p.cfg.Name, p.namespace).
		WithLabels(map[string]string{discoveryv1.LabelServiceName: p.cfg.Name, discoveryv1.LabelManagedBy: VMLease}).
		WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion("v1").WithKind("Service").WithName(service.Name).WithUID(service.UID)).
		WithAddressType(family).
		WithEndpoints(discoveryv1ac.Endpoint().WithAddresses(here.Addr().String()).WithConditions(discoveryv1ac.EndpointConditions().WithReady(true))).
		WithPorts(discoveryv1ac.EndpointPort().WithName(service.Spec.Ports[0].Name).WithPort(int32(here.Port())).WithProtocol(corev1.ProtocolTCP))
	if err := p.client.Apply(ctx, slice, client.FieldOwner(VMLease), client.ForceOwnership); err != nil {
		return fmt.Errorf("writing endpoint slice %s: %w", p.cfg.Name, err)
	}
	return nil
}
