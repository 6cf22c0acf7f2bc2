package service

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
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
	// Client creates TokenReviews. It reads from the cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Signer recognizes the Pods that a VM controller has created.
	Signer podstate.Signer
	// Admit returns nil if a token may be reviewed now, or the error for the caller. pod is the UID of the hypervisor's
	// Pod that the token names, if the caller has the address of that Pod or of its host; otherwise, pod is empty. If
	// Admit is nil, all tokens may be reviewed.
	Admit func(ctx context.Context, pod types.UID) error
}

// Resolve returns the hypervisor in the Pod to which a token is bound, or an error for identity.Issuer. It reviews the
// token only if Admit permits it, because a review takes requests to the API server, and anyone can send a token.
func (r TokenReviewer) Resolve(ctx context.Context, token string) (identity.Peer, error) {
	if r.Admit != nil {
		if err := r.Admit(ctx, r.likely(ctx, token)); err != nil {
			return identity.Peer{}, err
		}
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{vmpb.TokenAudience}}}
	if err := r.Client.Create(ctx, review); err != nil {
		return identity.Peer{}, fmt.Errorf("reviewing a token: %w", err)
	}
	pod, uid, err := boundPod(review.Status)
	if err != nil {
		return identity.Peer{}, err
	}
	found, err := r.hypervisorOf(ctx, r.APIReader, pod, uid)
	if err != nil {
		return identity.Peer{}, err
	}
	return identity.Peer{Namespace: pod.Namespace, VM: found.Labels[v1alpha1.LabelVM], Pod: pod.Name}, nil
}

// claims are the claims of a service account token that identify the Pod to which it is bound.
type claims struct {
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Pod       struct {
			Name string    `json:"name"`
			UID  types.UID `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// likely returns the UID of the hypervisor's Pod that a token names, if the cache has the Pod and its VM, and the caller
// has the address of the Pod or of its host, which may translate addresses. Otherwise it returns an empty UID. The token
// is not verified: others can send the same claims, but not from that address.
func (r TokenReviewer) likely(ctx context.Context, token string) types.UID {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var named claims
	if json.Unmarshal(payload, &named) != nil {
		return ""
	}
	key := types.NamespacedName{Namespace: named.Kubernetes.Namespace, Name: named.Kubernetes.Pod.Name}
	pod, err := r.hypervisorOf(ctx, r.Client, key, named.Kubernetes.Pod.UID)
	if err != nil || !hasAddress(pod, addressOf(ctx)) {
		return ""
	}
	return pod.UID
}

// addressOf returns the address of the caller of a gRPC method; the zero value if it is unknown.
func addressOf(ctx context.Context) netip.Addr {
	if caller, ok := peer.FromContext(ctx); ok {
		if tcp, ok := caller.Addr.(*net.TCPAddr); ok {
			return tcp.AddrPort().Addr().Unmap()
		}
	}
	return netip.Addr{}
}

// hasAddress reports whether a Pod or its host has an address.
func hasAddress(pod *corev1.Pod, address netip.Addr) bool {
	return hasPodAddress(pod, address) ||
		slices.ContainsFunc(pod.Status.HostIPs, func(of corev1.HostIP) bool { return sameAddress(of.IP, address) })
}

// hasPodAddress reports whether a Pod has an address, not only its host.
func hasPodAddress(pod *corev1.Pod, address netip.Addr) bool {
	return slices.ContainsFunc(pod.Status.PodIPs, func(of corev1.PodIP) bool { return sameAddress(of.IP, address) })
}

func sameAddress(text string, address netip.Addr) bool {
	parsed, err := netip.ParseAddr(text)
	return err == nil && parsed.Unmap() == address.Unmap()
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

// hypervisorOf returns the Pod of a hypervisor. The Pod's label and owner reference must name the same VM, that VM must
// still exist, and a VM controller must have created the Pod for it.
func (r TokenReviewer) hypervisorOf(ctx context.Context, from client.Reader, key types.NamespacedName, uid types.UID) (*corev1.Pod, error) {
	denied := status.Error(codes.PermissionDenied, "the token's pod is not the hypervisor of a virtual machine")
	pod := &corev1.Pod{}
	err := from.Get(ctx, key, pod)
	if apierrors.IsNotFound(err) {
		return nil, denied
	}
	if err != nil {
		return nil, fmt.Errorf("reading pod %s: %w", key, err)
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if pod.UID != uid || podstate.Finished(pod) || podstate.Owner(pod) == "" || pod.Labels[v1alpha1.LabelVM] != owner.Name {
		return nil, denied
	}
	vm := &v1alpha1.VirtualMachine{}
	err = from.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: owner.Name}, vm)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading virtual machine %s: %w", owner.Name, err)
	}
	if err != nil || !r.Signer.MayIdentify(vm, pod) {
		return nil, denied
	}
	return pod, nil
}
