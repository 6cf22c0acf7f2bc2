package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// AnnotationTarget is the annotation of the Lease machine-controller of a namespace with the identity of its target
// cluster, which is the UID of the target's Namespace kube-system.
const AnnotationTarget = Prefix + "target-uid"

const (
	// identifyTimeout limits the requests of one attempt to identify a target.
	identifyTimeout = 10 * time.Second
	// identifyPause is the time between two attempts.
	identifyPause = 2 * time.Second
	// gateTimeout is how long a request to a target that is not identified waits.
	gateTimeout = 10 * time.Second
)

// unidentified is recorded as the identity of a target whose kubeconfig does not permit reading it.
const unidentified = "forbidden"

// identity verifies that a kubeconfig is for the cluster for which the Machines of a namespace were created. Until then,
// requests with it wait.
type identity struct {
	namespace string
	// seed is the UID of the seed.
	seed string
	// target and leases are clients of the target and the seed.
	target, leases kubernetes.Interface
	gate           *gate
	// report is called with what users should know although the namespace is served.
	report func(*problem)
}

// newIdentity returns an identity and the kubeconfig whose requests wait for it.
func newIdentity(namespace, seed string, config *rest.Config, leases kubernetes.Interface, report func(*problem)) (*identity, *rest.Config, error) {
	config = rest.CopyConfig(config)
	config.Wrap(untrusted)
	asked := rest.CopyConfig(config)
	asked.Timeout = identifyTimeout
	target, err := kubernetes.NewForConfig(asked)
	if err != nil {
		return nil, nil, problemf(ReasonKubeconfigRefused, "the certificates or keys of the target's kubeconfig cannot be used")
	}
	i := &identity{namespace: namespace, seed: seed, target: target, leases: leases, gate: &gate{open: make(chan struct{})}, report: report}
	gated := rest.CopyConfig(config)
	gated.Wrap(i.gate.wrap)
	return i, gated, nil
}

// first makes one attempt to identify the target. It returns an error only if the target must not be used.
func (i *identity) first(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	_, _, err := i.compare(ctx)
	if refused, ok := errors.AsType[*problem](err); ok {
		return refused
	}
	return nil
}

// await makes attempts until the target is identified and recorded, and then opens the gate. It returns an error if the
// target must not be used.
func (i *identity) await(ctx context.Context) error {
	for ctx.Err() == nil {
		uid, recorded, err := i.compare(ctx)
		if refused, ok := errors.AsType[*problem](err); ok {
			return refused
		}
		if err == nil && !recorded {
			err = i.record(ctx, uid)
		}
		if err == nil {
			if uid == unidentified {
				i.report(problemf(ReasonTargetUnknown, "the kubeconfig of the target cluster does not permit reading Namespace %s, so a kubeconfig of another cluster would not be noticed; grant this permission", metav1.NamespaceSystem))
			}
			i.gate.opening.Do(func() { close(i.gate.open) })
			return nil
		}
		select {
		case <-time.After(identifyPause):
		case <-ctx.Done():
		}
	}
	return nil
}

// compare returns the identity of the target, and whether it is recorded. The error is a problem if the target must not
// be used.
func (i *identity) compare(ctx context.Context) (uid string, recorded bool, err error) {
	uid, err = uidOf(ctx, i.target)
	if apierrors.IsForbidden(err) {
		uid, err = unidentified, nil
	}
	if err != nil {
		return "", false, err
	}
	if uid == i.seed {
		return "", false, problemf(ReasonTargetIsSeed, "the kubeconfig of the target cluster leads to the seed itself; replace it with that of the cluster that the nodes join")
	}
	lease, err := i.leases.CoordinationV1().Leases(i.namespace).Get(ctx, v1alpha1.LeaseMachineController, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return uid, false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("reading the identity of the target: %w", err)
	}
	switch stored := lease.Annotations[AnnotationTarget]; {
	case stored == uid:
		return uid, true, nil
	case stored == "" || stored == unidentified:
		return uid, false, nil
	case uid == unidentified:
		return "", false, problemf(ReasonTargetChanged, "the kubeconfig of the target cluster does not permit reading Namespace %s, so it is not known whether it leads to the same cluster as before; grant this permission", metav1.NamespaceSystem)
	default:
		return "", false, problemf(ReasonTargetChanged, "the kubeconfig leads to another target cluster than before (Namespace %s has the UID %s instead of %s); correct the kubeconfig, or, if the Machines of this namespace belong to the new cluster, remove the annotation %s of Lease %s",
			metav1.NamespaceSystem, uid, stored, AnnotationTarget, v1alpha1.LeaseMachineController)
	}
}

// record stores the identity of the target. The manager creates the Lease.
func (i *identity) record(ctx context.Context, uid string) error {
	leases := i.leases.CoordinationV1().Leases(i.namespace)
	lease, err := leases.Get(ctx, v1alpha1.LeaseMachineController, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("recording the identity of the target: %w", err)
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, AnnotationTarget, uid)
	if _, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("recording the identity of the target: %w", err)
	}
	return nil
}

// uidOf returns the identity of a cluster.
func uidOf(ctx context.Context, cluster kubernetes.Interface) (string, error) {
	system, err := cluster.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	const longest = 64 // of a UUID, 36 characters
	if len(system.UID) == 0 || len(system.UID) > longest {
		return "", fmt.Errorf("the Namespace %s has no valid UID", metav1.NamespaceSystem)
	}
	return string(system.UID), nil
}

// gate delays requests until it is open.
type gate struct {
	open    chan struct{}
	opening sync.Once
}

var errNotIdentified = errors.New("the target cluster has not been identified yet")

func (g *gate) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		select {
		case <-g.open:
			return next.RoundTrip(request)
		default:
		}
		late := time.NewTimer(gateTimeout)
		defer late.Stop()
		select {
		case <-g.open:
			return next.RoundTrip(request)
		case <-late.C:
			return nil, errNotIdentified
		case <-request.Context().Done():
			return nil, request.Context().Err()
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
