package hostrunner

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/internal/local/folder"
)

// renewTokens writes new tokens into the Pod's projected volumes. It returns when the
// next ones are due, zero if there are none: when four fifths of the life of the one
// that ends first have passed.
func (v volumes) renewTokens(ctx context.Context, pod *corev1.Pod, f podFolder) (time.Time, error) {
	var due time.Time
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			next, err := v.renewToken(ctx, pod, source.ServiceAccountToken, f.volume(volume.Name))
			if err != nil {
				return time.Time{}, &notReadyError{volume: volume.Name, err: err}
			}
			if due.IsZero() || next.Before(due) {
				due = next
			}
		}
	}
	return due, nil
}

func (v volumes) renewToken(
	ctx context.Context, pod *corev1.Pod, source *corev1.ServiceAccountTokenProjection, dir string,
) (time.Time, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		// A token that is bound to the Pod ends with it.
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	now := v.clock.Now()
	answer, err := v.client.CoreV1().ServiceAccounts(pod.Namespace).
		CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("asking for a token of service account %s: %w", pod.Spec.ServiceAccountName, err)
	}
	if err := folder.WriteFile(filepath.Join(dir, source.Path), []byte(answer.Status.Token)); err != nil {
		return time.Time{}, err
	}
	life := answer.Status.ExpirationTimestamp.Sub(now)
	return now.Add(life / 5 * 4), nil
}
