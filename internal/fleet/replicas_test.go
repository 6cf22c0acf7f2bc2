package fleet

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestReplicas_NoticeEachOther checks that replicas notice when others join, leave, or die, but consider no one dead because
// they themselves cannot reach the API server. Replicas of another fleet do not count.
func TestReplicas_NoticeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, down := fake.NewClientset(), false
		clients.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down, nil, apierrors.NewServiceUnavailable("away")
		})
		var mu sync.Mutex
		alive := map[string][]string{}
		startIn := func(fleet, name string) (r *replicas, stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			r = &replicas{leases: clients.CoordinationV1().Leases("fleet"), self: name, fleet: fleet, period: 2 * time.Second, timeout: 10 * time.Second, log: testr.New(t)}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				r.follow(ctx, func(now []string) { mu.Lock(); defer mu.Unlock(); alive[name] = now })
			}()
			return r, func() { cancel(); <-ended }
		}
		start := func(name string) (*replicas, func()) { return startIn("this", name) }
		want := func(of string, names ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(alive[of], names) {
				t.Errorf("%s knows %v, want %v", of, alive[of], names)
			}
		}
		_, stopA := start("a")
		defer stopA()
		b, stopB := start("b")
		_, stopC := start("c")
		_, stopOther := startIn("another", "d")
		defer stopOther()
		time.Sleep(5 * time.Second)
		want("a", "a", "b", "c")
		want("d", "d")

		down = true
		time.Sleep(time.Minute)
		want("a", "a", "b", "c")
		down = false
		time.Sleep(5 * time.Second)
		want("a", "a", "b", "c")

		stopB()
		b.leave(context.Background())
		time.Sleep(3 * time.Second)
		want("a", "a", "c")
		// It renewed its lease a second ago, and renewals are at even seconds, so the lease expires 9 to 11 seconds from now.
		stopC() // without leaving
		time.Sleep(8 * time.Second)
		want("a", "a", "c")
		time.Sleep(4 * time.Second)
		want("a", "a")
	})
}
