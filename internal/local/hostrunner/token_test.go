package hostrunner

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// claims are those of a service account token.
type claims struct {
	Audience   []string `json:"aud"`
	Kubernetes struct {
		Pod struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

func readToken(t *testing.T, path string) (string, claims) {
	t.Helper()
	token, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var have claims
	parts := strings.Split(string(token), ".")
	if len(parts) != 3 {
		t.Fatalf("the token has %d parts, want 3", len(parts))
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(body, &have)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(token), have
}

// awaitStirred is like await, for a host whose clock is stopped. Early attempts can fail, because the API server
// learns late that the Pod is on this host. Since the clock does not advance, changes of the Pod trigger the
// retries.
func (b *testHost) awaitStirred(name string, phase corev1.PodPhase) {
	b.t.Helper()
	stirred := 0
	b.eventually("phase "+string(phase), func() (bool, any) {
		stirred++
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/stirred":"%d"}}}`, stirred)
		pod, err := b.client.CoreV1().Pods(b.Namespace).Patch(b.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err == nil && pod.Status.Phase == phase, pod
	})
}

func TestPod_TokensAreRenewed(t *testing.T) {
	b := newTestHost(t)
	clock := clocktesting.NewFakeClock(time.Now())
	b.config.Clock = clock
	b.start()
	pod := b.pod("vm", "run", withVolume("token", filepath.Dir(vmpb.TokenPath), tokenVolume()))
	b.awaitStirred("vm", corev1.PodRunning)
	b.awaitReady("vm")
	path := filepath.Join(b.location(pod).root(), vmpb.TokenPath)

	first, have := readToken(t, path)
	want := claims{Audience: []string{vmpb.TokenAudience}}
	want.Kubernetes.Pod.Name, want.Kubernetes.Pod.UID = "vm", string(pod.UID)
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("claims of the token (-want +got):\n%s", diff)
	}
	// The token is valid for ten minutes, and is renewed after eight. The worker must have read the clock before
	// the test reads the file.
	clock.Step(7 * time.Minute)
	b.pod("later", "0")
	b.awaitStirred("later", corev1.PodSucceeded)
	if second, _ := readToken(t, path); second != first {
		t.Error("the token was renewed too early")
	}
	b.eventually("another token", func() (bool, any) {
		clock.Step(10 * time.Second)
		second, _ := readToken(t, path)
		return second != first, clock.Now()
	})
}
