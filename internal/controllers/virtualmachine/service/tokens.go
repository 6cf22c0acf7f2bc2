package service

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Keys in the user info of a TokenReview that identify the Pod to which a token is bound.
const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"
)

// TokenReviewer identifies the hypervisor that presents a service account token.
type TokenReviewer struct {
	// Client creates TokenReviews.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Signer recognizes the Pods that a VM controller has created.
	Signer podstate.Signer
}

// Resolve returns the hypervisor in the Pod to which a token is bound, or an error for identity.Issuer.
func (r TokenReviewer) Resolve(ctx context.Context, token string) (identity.Peer, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{vmpb.TokenAudience}}}
	if err := r.Client.Create(ctx, review); err != nil {
		return identity.Peer{}, fmt.Errorf("reviewing a token: %w", err)
	}
	pod, uid, err := boundPod(review.Status)
	if err != nil {
		return identity.Peer{}, err
	}
	vm, err := r.hypervisorOf(ctx, pod, uid)
	if err != nil {
		return identity.Peer{}, err
	}
	return identity.Peer{Namespace: pod.Namespace, VM: vm, Pod: pod.Name}, nil
}

// boundPod returns the Pod to which a token is bound.
func boundPod(review authenticationv1.TokenReviewStatus) (types.NamespacedName, types.UID, error) {
	if !review.Authenticated || !slices.Contains(review.Audiences, vmpb.TokenAudience) {
		return types.NamespacedName{}, "", status.Error(codes.Unauthenticated, "the token is not valid for audience "+vmpb.TokenAudience)
	}
	// The username has the form system:serviceaccount:NAMESPACE:NAME.
	user := strings.Split(review.User.Username, ":")
	names, uids := review.User.Extra[extraPodName], review.User.Extra[extraPodUID]
	if len(user) != 4 || user[0] != "system" || user[1] != "serviceaccount" || len(names) != 1 || len(uids) != 1 {
		return types.NamespacedName{}, "", status.Error(codes.Unauthenticated, "the token is not bound to a pod")
	}
	return types.NamespacedName{Namespace: user[2], Name: names[0]}, types.UID(uids[0]), nil
}

// hypervisorOf returns the name of the VM whose hypervisor runs in a Pod. The Pod's label and owner reference must
// name the same VM, that VM must still exist, and a VM controller must have created the Pod for it.
func (r TokenReviewer) hypervisorOf(ctx context.Context, key types.NamespacedName, uid types.UID) (string, error) {
	denied := status.Error(codes.PermissionDenied, "the token's pod is not the hypervisor of a virtual machine")
	pod := &corev1.Pod{}
	err := r.APIReader.Get(ctx, key, pod)
	if apierrors.IsNotFound(err) {
		return "", denied
	}
	if err != nil {
		return "", fmt.Errorf("reading pod %s: %w", key, err)
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if pod.UID != uid || podstate.Finished(pod) || podstate.Owner(pod) == "" || pod.Labels[v1alpha1.LabelVM] != owner.Name {
		return "", denied
	}
	vm := &v1alpha1.VirtualMachine{}
	err = r.APIReader.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: owner.Name}, vm)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("reading virtual machine %s: %w", owner.Name, err)
	}
	if err != nil || !r.Signer.MayIdentify(vm, pod) {
		return "", denied
	}
	return vm.Name, nil
}
