package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
)

// requestTimeout allows for admission webhooks, which may take 30 s.
const requestTimeout = 40 * time.Second

func (d *Drainer) apply(machine types.NamespacedName, l *drainState, ops []operation) {
	for _, op := range ops {
		accepted := d.Run(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			d.note(l, op, d.do(ctx, op))
			d.Wake(machine)
		})
		if !accepted {
			d.mu.Lock()
			l.pods[op.pod.uid].calling = false // this process is no longer the leader
			d.mu.Unlock()
		}
	}
}

func (d *Drainer) do(ctx context.Context, op operation) error {
	if !op.force {
		return d.Evictor.Evict(ctx, op.pod.key, op.pod.uid)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: op.pod.key.Namespace, Name: op.pod.key.Name}}
	return d.Client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &op.pod.uid})
}

// note records the outcome of an operation. If the API server finds no such Pod, or another Pod of that name,
// the Pod is gone.
func (d *Drainer) note(l *drainState, op operation, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.reindex(l)
	p := l.pods[op.pod.uid]
	now := d.Clock.Now()
	p.calling, p.last, p.refused, p.failure = false, now, false, nil
	if err == nil || apierror.Gone(err) || apierror.Conflict(err) {
		p.sent, p.removed = now, op.force
		if op.force {
			p.grace = 0
		}
		return
	}
	if !op.force && apierrors.IsTooManyRequests(err) && apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
		p.refused = true
		return
	}
	p.failure = err
}

// DeleteAttachments deletes the VolumeAttachments of a node after a forced drain. It reports done when all of
// them are being deleted, the node is gone, nothing is attached to it, or the cache cannot be read.
func (d *Drainer) DeleteAttachments(ctx context.Context, node string) (done bool, err error) {
	found := &corev1.Node{}
	if err := d.Client.Get(ctx, types.NamespacedName{Name: node}, found); err != nil {
		return client.IgnoreNotFound(err) == nil, absent(err, "reading node %s", node)
	}
	if len(found.Status.VolumesAttached) == 0 {
		return true, nil
	}
	if !d.isFilled(node) {
		return true, nil // the drain did not wait for the cache any longer
	}
	attachments := &storagev1.VolumeAttachmentList{}
	if err := d.Client.List(ctx, attachments, client.MatchingFields{AttachmentByNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing the volume attachments of node %s: %w", node, err)
	}
	done = true
	var problems []error
	for i := range attachments.Items {
		attachment := &attachments.Items[i]
		if !attachment.DeletionTimestamp.IsZero() {
			continue
		}
		done = false
		if err := d.Client.Delete(ctx, attachment.DeepCopy(), client.Preconditions{UID: &attachment.UID}); apierror.IgnoreGone(err) != nil {
			problems = append(problems, fmt.Errorf("deleting volume attachment %s: %w", attachment.Name, err))
		}
	}
	return done, errors.Join(problems...)
}

// Evictor evicts Pods and lists the remaining ones. Its errors are those of the API server: a Conflict if the
// Pod of that name has another UID.
type Evictor interface {
	Evict(ctx context.Context, pod types.NamespacedName, uid types.UID) error
	// Left returns the Pods of a node, or all Pods if node is empty. It uses a consistent list and no cache. It
	// returns at most limit Pods and whether there are more. If limit is zero, it returns all.
	Left(ctx context.Context, node string, limit int64) (pods []corev1.Pod, more bool, err error)
}

// NewEvictor returns an Evictor that uses the policy/v1 eviction subresource. The client must be for the core
// group, such as CoreV1().RESTClient(). If the API server does not have the subresource, Pods are deleted with
// their grace period.
func NewEvictor(core rest.Interface) Evictor { return restEvictor{core} }

type restEvictor struct{ core rest.Interface }

func (e restEvictor) Evict(ctx context.Context, pod types.NamespacedName, uid types.UID) error {
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(uid))}
	eviction := &policyv1.Eviction{
		TypeMeta:      metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "Eviction"},
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &options,
	}
	// A refusal may have a Retry-After header, for which client-go would sleep up to ten times.
	err := e.core.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		VersionedParams(&metav1.CreateOptions{}, scheme.ParameterCodec).MaxRetries(0).Body(eviction).Do(ctx).Error()
	if !unsupported(err) {
		return err
	}
	return e.core.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		MaxRetries(0).Body(&options).Do(ctx).Error()
}

// Left implements Evictor.
func (e restEvictor) Left(ctx context.Context, node string, limit int64) (left []corev1.Pod, more bool, err error) {
	pods, options := &corev1.PodList{}, &metav1.ListOptions{Limit: limit}
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	err = e.core.Get().Resource("pods").VersionedParams(options, scheme.ParameterCodec).MaxRetries(0).Do(ctx).Into(pods)
	return pods.Items, pods.Continue != "", err
}

// unsupported reports whether the subresource rather than the Pod is missing. Only for a missing Pod does the
// API server return a Status.
func unsupported(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err)
}
