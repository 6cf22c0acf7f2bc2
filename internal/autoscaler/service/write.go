package service

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/autoscaler"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
)

// NodeGroupIncreaseSize implements CloudProvider.
func (s *Service) NodeGroupIncreaseSize(ctx context.Context, request *autoscalerpb.NodeGroupIncreaseSizeRequest) (*autoscalerpb.NodeGroupIncreaseSizeResponse, error) {
	err := s.change(ctx, request.GetId(), func(deployment *v1alpha1.MachineDeployment) (bool, error) {
		return true, autoscaler.Increase(deployment, request.GetDelta())
	})
	return &autoscalerpb.NodeGroupIncreaseSizeResponse{}, err
}

// NodeGroupDecreaseTargetSize implements CloudProvider.
func (s *Service) NodeGroupDecreaseTargetSize(ctx context.Context, request *autoscalerpb.NodeGroupDecreaseTargetSizeRequest) (*autoscalerpb.NodeGroupDecreaseTargetSizeResponse, error) {
	err := s.change(ctx, request.GetId(), func(deployment *v1alpha1.MachineDeployment) (bool, error) {
		machines, err := s.machines(ctx, deployment)
		if err != nil {
			return false, err
		}
		return true, autoscaler.Decrease(deployment, request.GetDelta(), len(machines))
	})
	return &autoscalerpb.NodeGroupDecreaseTargetSizeResponse{}, err
}

// NodeGroupDeleteNodes implements CloudProvider. If one of the nodes cannot be deleted, none is.
func (s *Service) NodeGroupDeleteNodes(ctx context.Context, request *autoscalerpb.NodeGroupDeleteNodesRequest) (*autoscalerpb.NodeGroupDeleteNodesResponse, error) {
	var machines []*v1alpha1.Machine
	for _, node := range request.GetNodes() {
		machine, err := s.member(ctx, request.GetId(), node)
		if err != nil {
			return nil, err
		}
		machines = append(machines, machine)
	}
	err := s.change(ctx, request.GetId(), func(deployment *v1alpha1.MachineDeployment) (bool, error) {
		return autoscaler.Delete(deployment, machines, time.Now())
	})
	return &autoscalerpb.NodeGroupDeleteNodesResponse{}, err
}

// member returns the Machine of a node, which must be in the group.
func (s *Service) member(ctx context.Context, id string, node *autoscalerpb.ExternalGrpcNode) (*v1alpha1.Machine, error) {
	machine, err := s.machineOf(ctx, node)
	if err != nil {
		return nil, err
	}
	if machine == nil {
		return nil, status.Errorf(codes.NotFound, "node %q has no machine", node.GetName())
	}
	of, err := s.deploymentOf(ctx, machine)
	if err != nil {
		return nil, err
	}
	if of == nil || of.Name != id {
		return nil, status.Errorf(codes.InvalidArgument, "node %q is not in group %q", node.GetName(), id)
	}
	return machine, nil
}

// change changes the API server's version of a deployment, and returns when the cache has the change. The
// function f reports whether it changed the deployment.
func (s *Service) change(ctx context.Context, id string, f func(*v1alpha1.MachineDeployment) (bool, error)) error {
	changed, err := s.changeNewest(ctx, id, f)
	switch refused, ok := errors.AsType[autoscaler.Refused](err); {
	case ok:
		return status.Errorf(codes.FailedPrecondition, "group %s: %v", id, refused)
	case err != nil && status.Code(err) != codes.Unknown:
		return err
	case err != nil:
		return failed("changing machine deployment "+id, err)
	case changed == nil:
		return nil
	}
	return s.awaitSeen(ctx, changed)
}

// tries is how often a change is tried if others change the deployment at the same time. retry.RetryOnConflict
// of client-go is not used because it treats an exceeded deadline as success.
const tries = 5

// changeNewest returns the changed deployment, or nil if there was nothing to change.
func (s *Service) changeNewest(ctx context.Context, id string, f func(*v1alpha1.MachineDeployment) (bool, error)) (next *v1alpha1.MachineDeployment, err error) {
	for range tries {
		deployment, err := s.read(ctx, s.Live, id)
		if err != nil {
			return nil, err
		}
		next = deployment.DeepCopy()
		if changed, err := f(next); err != nil || !changed {
			return nil, err
		}
		err = s.Live.Patch(ctx, next, client.MergeFromWithOptions(deployment, client.MergeFromWithOptimisticLock{}))
		if !apierror.Conflict(err) {
			return next, err
		}
	}
	return nil, status.Errorf(codes.Aborted, "machine deployment %s keeps changing; giving up after %d attempts", id, tries)
}

// seenEvery is how often the cache is checked for a change.
const seenEvery = 10 * time.Millisecond

// awaitSeen waits until the cache has a generation of a deployment, so that the next response about the size of
// its group is not outdated.
func (s *Service) awaitSeen(ctx context.Context, changed *v1alpha1.MachineDeployment) error {
	err := wait.PollUntilContextCancel(ctx, seenEvery, true, func(ctx context.Context) (bool, error) {
		cached, err := s.deployment(ctx, changed.Name)
		if err != nil {
			return false, err
		}
		return cached.Generation >= changed.Generation || cached.UID != changed.UID, nil
	})
	if err != nil {
		return failed("waiting for the change of machine deployment "+changed.Name, err)
	}
	return nil
}
