// Package service implements a cloud provider for the Kubernetes cluster-autoscaler, which uses it over gRPC.
package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/autoscaler"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
)

// Service implements the protocol. Each MachineDeployment in a namespace that has the annotation for its
// maximum size is a group. A Service keeps no state between calls, so several instances may serve at the same
// time.
type Service struct {
	autoscalerpb.UnimplementedCloudProviderServer // prices

	// Namespace is the namespace of the Machines.
	Namespace string
	// Cache has the Machines, sets, deployments and classes, with the indexes of package fieldindex.
	Cache client.Reader
	// Live reads and writes deployments.
	Live client.Client
	// Nodes is a cache of the cluster that the Machines join, or nil if there is none.
	Nodes client.Reader
}

var _ autoscalerpb.CloudProviderServer = (*Service)(nil)

// gpuLabel is the label of nodes with GPUs. Gardener's autoscaler uses the same label.
const gpuLabel = "gardener.cloud/accelerator"

// GPULabel implements CloudProvider.
func (s *Service) GPULabel(context.Context, *autoscalerpb.GPULabelRequest) (*autoscalerpb.GPULabelResponse, error) {
	return &autoscalerpb.GPULabelResponse{Label: gpuLabel}, nil
}

// GetAvailableGPUTypes implements CloudProvider. Classes do not name types.
func (s *Service) GetAvailableGPUTypes(context.Context, *autoscalerpb.GetAvailableGPUTypesRequest) (*autoscalerpb.GetAvailableGPUTypesResponse, error) {
	return &autoscalerpb.GetAvailableGPUTypesResponse{}, nil
}

// Cleanup implements CloudProvider.
func (s *Service) Cleanup(context.Context, *autoscalerpb.CleanupRequest) (*autoscalerpb.CleanupResponse, error) {
	return &autoscalerpb.CleanupResponse{}, nil
}

// Refresh implements CloudProvider. It fails if the API server does not respond, because the autoscaler must
// not act on outdated caches.
func (s *Service) Refresh(ctx context.Context, _ *autoscalerpb.RefreshRequest) (*autoscalerpb.RefreshResponse, error) {
	if err := s.Live.List(ctx, &v1alpha1.MachineDeploymentList{}, client.InNamespace(s.Namespace), client.Limit(1)); err != nil {
		return nil, failed("listing machine deployments", err)
	}
	return &autoscalerpb.RefreshResponse{}, nil
}

// NodeGroups implements CloudProvider.
func (s *Service) NodeGroups(ctx context.Context, _ *autoscalerpb.NodeGroupsRequest) (*autoscalerpb.NodeGroupsResponse, error) {
	list, response := &v1alpha1.MachineDeploymentList{}, &autoscalerpb.NodeGroupsResponse{}
	if err := s.Cache.List(ctx, list, client.InNamespace(s.Namespace)); err != nil {
		return nil, failed("listing machine deployments", err)
	}
	for i := range list.Items {
		group, err := s.group(ctx, &list.Items[i])
		if err != nil {
			return nil, err
		}
		if group != nil {
			response.NodeGroups = append(response.NodeGroups, group)
		}
	}
	return response, nil
}

// NodeGroupForNode implements CloudProvider.
func (s *Service) NodeGroupForNode(ctx context.Context, request *autoscalerpb.NodeGroupForNodeRequest) (*autoscalerpb.NodeGroupForNodeResponse, error) {
	none := &autoscalerpb.NodeGroupForNodeResponse{NodeGroup: &autoscalerpb.NodeGroup{}}
	machine, err := s.machineOf(ctx, request.GetNode())
	if err != nil || machine == nil {
		return none, err
	}
	deployment, err := s.deploymentOf(ctx, machine)
	if err != nil || deployment == nil {
		return none, err
	}
	group, err := s.group(ctx, deployment)
	if err != nil || group == nil {
		return none, err
	}
	return &autoscalerpb.NodeGroupForNodeResponse{NodeGroup: group}, nil
}

// group returns a deployment as a group, or nil if it is not one. Problems are logged, because the annotations
// show that the deployment should be scaled.
func (s *Service) group(ctx context.Context, deployment *v1alpha1.MachineDeployment) (*autoscalerpb.NodeGroup, error) {
	class, err := s.class(ctx, deployment)
	if err != nil {
		return nil, err
	}
	group, err := autoscaler.Group(deployment, class)
	if err != nil && !errors.Is(err, autoscaler.ErrNoGroup) {
		ctrl.LoggerFrom(ctx).Info("A machine deployment is not scaled", "machinedeployment", deployment.Name, "why", err.Error())
	}
	return group, nil
}

// NodeGroupTargetSize implements CloudProvider.
func (s *Service) NodeGroupTargetSize(ctx context.Context, request *autoscalerpb.NodeGroupTargetSizeRequest) (*autoscalerpb.NodeGroupTargetSizeResponse, error) {
	deployment, err := s.deployment(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	return &autoscalerpb.NodeGroupTargetSizeResponse{TargetSize: deployment.Spec.Replicas}, nil
}

// NodeGroupNodes implements CloudProvider.
func (s *Service) NodeGroupNodes(ctx context.Context, request *autoscalerpb.NodeGroupNodesRequest) (*autoscalerpb.NodeGroupNodesResponse, error) {
	deployment, err := s.deployment(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	machines, err := s.machines(ctx, deployment)
	if err != nil {
		return nil, err
	}
	response, now := &autoscalerpb.NodeGroupNodesResponse{}, time.Now()
	for _, machine := range machines {
		node, err := s.node(ctx, machine)
		if err != nil {
			return nil, err
		}
		if instance := autoscaler.Instance(machine, node, autoscaler.Named(deployment, machine.Name), now); instance != nil {
			response.Instances = append(response.Instances, instance)
		}
	}
	return response, nil
}

// NodeGroupTemplateNodeInfo implements CloudProvider.
func (s *Service) NodeGroupTemplateNodeInfo(ctx context.Context, request *autoscalerpb.NodeGroupTemplateNodeInfoRequest) (*autoscalerpb.NodeGroupTemplateNodeInfoResponse, error) {
	deployment, err := s.deployment(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	class, err := s.class(ctx, deployment)
	if err != nil {
		return nil, err
	}
	node, err := autoscaler.Template(deployment, class)
	if err != nil {
		return nil, status.Errorf(codes.Unimplemented, "group %s: %v", request.GetId(), err)
	}
	encoded, err := node.Marshal()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encoding the node of group %s: %v", request.GetId(), err)
	}
	return &autoscalerpb.NodeGroupTemplateNodeInfoResponse{NodeInfo: encoded, NodeBytes: encoded}, nil
}

// NodeGroupGetOptions implements CloudProvider.
func (s *Service) NodeGroupGetOptions(ctx context.Context, request *autoscalerpb.NodeGroupAutoscalingOptionsRequest) (*autoscalerpb.NodeGroupAutoscalingOptionsResponse, error) {
	deployment, err := s.deployment(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	options, err := autoscaler.Options(deployment, request.GetDefaults())
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("Options of a machine deployment are ignored", "machinedeployment", deployment.Name, "why", err.Error())
	}
	return &autoscalerpb.NodeGroupAutoscalingOptionsResponse{NodeGroupAutoscalingOptions: options}, nil
}

// failed returns the response to an error of an API server.
func failed(doing string, err error) error {
	code := codes.Unavailable
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case apierrors.IsForbidden(err):
		code = codes.PermissionDenied
	case apierror.Conflict(err):
		code = codes.Aborted
	case apierrors.IsInvalid(err), apierror.Denied(err):
		code = codes.FailedPrecondition
	}
	return status.Error(code, fmt.Sprintf("%s: %v", doing, err))
}

// node returns the node of a Machine, or nil if it has not joined.
func (s *Service) node(ctx context.Context, machine *v1alpha1.Machine) (*corev1.Node, error) {
	name := machine.NodeName()
	if name == "" || s.Nodes == nil {
		return nil, nil
	}
	node := &corev1.Node{}
	if err := s.Nodes.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, failed("reading node "+name, err)
	}
	return node, nil
}
