package service

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/autoscaler"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
)

// deployment returns the deployment of a group from the cache.
func (s *Service) deployment(ctx context.Context, id string) (*v1alpha1.MachineDeployment, error) {
	return s.read(ctx, s.Cache, id)
}

func (s *Service) read(ctx context.Context, from client.Reader, id string) (*v1alpha1.MachineDeployment, error) {
	deployment := &v1alpha1.MachineDeployment{}
	err := from.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: id}, deployment)
	if apierrors.IsNotFound(err) {
		return nil, status.Errorf(codes.NotFound, "group %q not found", id)
	}
	if err != nil {
		return nil, failed("reading machine deployment "+id, err)
	}
	return deployment, nil
}

// class returns the class of a deployment, or nil if it does not exist.
func (s *Service) class(ctx context.Context, deployment *v1alpha1.MachineDeployment) (*v1alpha1.MachineClass, error) {
	class, name := &v1alpha1.MachineClass{}, deployment.Spec.Template.Spec.Class.Name
	err := s.Cache.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, class)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, failed("reading machine class "+name, err)
	}
	return class, nil
}

// machines returns the Machines of a deployment. They must not be changed.
func (s *Service) machines(ctx context.Context, deployment *v1alpha1.MachineDeployment) ([]*v1alpha1.Machine, error) {
	sets := &v1alpha1.MachineSetList{}
	if err := s.controlled(ctx, sets, deployment); err != nil {
		return nil, err
	}
	var all []*v1alpha1.Machine
	for i := range sets.Items {
		machines := &v1alpha1.MachineList{}
		if err := s.controlled(ctx, machines, &sets.Items[i]); err != nil {
			return nil, err
		}
		for i := range machines.Items {
			all = append(all, &machines.Items[i])
		}
	}
	return all, nil
}

func (s *Service) controlled(ctx context.Context, list client.ObjectList, by client.Object) error {
	err := s.Cache.List(ctx, list, client.InNamespace(s.Namespace), client.MatchingFields{fieldindex.ByController: string(by.GetUID())}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return failed("listing the objects controlled by "+by.GetName(), err)
	}
	return nil
}

// machineOf returns the Machine of a node, which may be a placeholder of the autoscaler for an instance. It
// returns nil if there is none.
func (s *Service) machineOf(ctx context.Context, node *autoscalerpb.ExternalGrpcNode) (*v1alpha1.Machine, error) {
	if name := autoscaler.Requested(node.GetProviderId()); name != "" {
		machine := &v1alpha1.Machine{}
		err := s.Cache.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, machine)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, failed("reading machine "+name, err)
		}
		return machine, nil
	}
	machine, err := s.indexed(ctx, fieldindex.MachineByNode, node.GetName())
	if err != nil || machine != nil {
		return machine, err
	}
	return s.indexed(ctx, fieldindex.MachineByProviderID, node.GetProviderId())
}

// indexed returns a Machine with the given index value, or nil if there is none.
func (s *Service) indexed(ctx context.Context, index, value string) (*v1alpha1.Machine, error) {
	if value == "" {
		return nil, nil
	}
	machines := &v1alpha1.MachineList{}
	err := s.Cache.List(ctx, machines, client.InNamespace(s.Namespace), client.MatchingFields{index: value})
	if err != nil {
		return nil, failed("looking for the machine of a node", err)
	}
	if len(machines.Items) == 0 {
		return nil, nil
	}
	return &machines.Items[0], nil
}

// deploymentOf returns the deployment of a Machine, or nil if it has none.
func (s *Service) deploymentOf(ctx context.Context, machine *v1alpha1.Machine) (*v1alpha1.MachineDeployment, error) {
	set, deployment := &v1alpha1.MachineSet{}, &v1alpha1.MachineDeployment{}
	if found, err := s.controller(ctx, machine, set, "MachineSet"); err != nil || !found {
		return nil, err
	}
	if found, err := s.controller(ctx, set, deployment, "MachineDeployment"); err != nil || !found {
		return nil, err
	}
	return deployment, nil
}

// controller reads the controller of an object, and reports whether it exists.
func (s *Service) controller(ctx context.Context, of, into client.Object, kind string) (bool, error) {
	owner := metav1.GetControllerOf(of)
	if owner == nil || owner.Kind != kind {
		return false, nil
	}
	err := s.Cache.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: owner.Name}, into)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, failed("reading "+owner.Kind+" "+owner.Name, err)
	}
	return err == nil && into.GetUID() == owner.UID, nil
}
