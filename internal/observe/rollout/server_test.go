package rollout

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

func TestMain(m *testing.M) { env.Main(m) }

// eventually limits how long a change may take to be observed.
const eventually = env.WaitTimeout

// cable is a connection to an API server that can be interrupted.
type cable struct {
	mu     sync.Mutex
	cut    error
	bodies []io.Closer
}

func (c *cable) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		c.mu.Lock()
		cut := c.cut
		c.mu.Unlock()
		if cut != nil {
			return nil, cut
		}
		response, err := next.RoundTrip(request)
		if err == nil && request.URL.Query().Has("watch") {
			c.mu.Lock()
			c.bodies = append(c.bodies, response.Body)
			c.mu.Unlock()
		}
		return response, err
	})
}

// set closes the watches, and makes later requests fail with err unless it is nil.
func (c *cable) set(cut error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, body := range c.bodies {
		_ = body.Close() // stops the watch
	}
	c.bodies, c.cut = nil, cut
}

// server is an API server with a deployment and no manager.
type server struct {
	*env.Env
	t     *testing.T
	cable *cable
	key   types.NamespacedName
}

func newServer(t *testing.T, changes ...change) *server {
	s := &server{Env: env.New(t), t: t, cable: &cable{}}
	deployment := give(changes...).deployment
	status := deployment.Status
	deployment.ObjectMeta = metav1.ObjectMeta{Namespace: s.Namespace, Name: deployment.Name}
	s.key = client.ObjectKeyFromObject(deployment)
	s.do(s.Client.Create(t.Context(), deployment))
	deployment.Status = status
	deployment.Status.ObservedGeneration = deployment.Generation
	s.do(s.Client.Status().Update(t.Context(), deployment))
	return s
}

func (s *server) do(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// reports changes the status of the deployment.
func (s *server) reports(available int32) {
	s.t.Helper()
	deployment := &v1alpha1.MachineDeployment{}
	s.do(s.Client.Get(s.t.Context(), s.key, deployment))
	deployment.Status.AvailableReplicas = available
	s.do(s.Client.Status().Update(s.t.Context(), deployment))
}

// follow follows the deployment and sends the facts it receives.
func (s *server) follow(ctx context.Context) (seen <-chan Facts, ended <-chan error) {
	s.t.Helper()
	config := rest.CopyConfig(s.Admin)
	config.Wrap(s.cable.wrap)
	c, err := client.NewWithWatch(config, client.Options{Scheme: env.NewScheme()})
	s.do(err)
	facts, done := make(chan Facts), make(chan error, 1)
	ctx, cancel := context.WithTimeout(ctx, 2*eventually)
	s.t.Cleanup(cancel)
	go func() {
		done <- (&Follower{Config: config, Client: c}).Follow(ctx, s.key, func(f Facts) (bool, error) {
			select {
			case facts <- f:
				return false, nil
			case <-ctx.Done():
				return false, ctx.Err()
			}
		})
	}()
	return facts, done
}

// until waits until a check returns true.
func (s *server) until(seen <-chan Facts, ended <-chan error, what string, check func(Facts) bool) {
	s.t.Helper()
	timeout := time.After(eventually)
	for {
		select {
		case facts := <-seen:
			if check(facts) {
				return
			}
		case err := <-ended:
			s.t.Fatalf("ended with %v before this was seen: %s", err, what)
		case <-timeout:
			s.t.Fatalf("not seen: %s", what)
		}
	}
}

func available(n int32) func(Facts) bool {
	return func(f Facts) bool { return f.Deployment.Status.AvailableReplicas == n && f.Problem == "" }
}

// TestRollout_FollowContinuesAfterOutage checks that Follow continues after a closed watch and after an
// outage, and reports the outage.
func TestRollout_FollowContinuesAfterOutage(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := s.follow(ctx)
	s.until(seen, ended, "the first state", available(3))

	s.cable.set(nil)
	s.reports(2)
	s.until(seen, ended, "a change after the watches ended", available(2))

	s.cable.set(errors.New("the cable is cut"))
	s.reports(1)
	s.until(seen, ended, "the problem", func(f Facts) bool {
		return strings.Contains(f.Problem, "the cable is cut") && f.Deployment.Status.AvailableReplicas == 2
	})
	s.cable.set(nil)
	s.until(seen, ended, "the change during the outage", available(1))

	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestRollout_FollowReportsDeletedDeployment(t *testing.T) {
	s := newServer(t)
	seen, ended := s.follow(t.Context())
	s.until(seen, ended, "the first state", available(3))
	s.do(s.Client.Delete(t.Context(), &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: s.key.Name}}))
	for {
		select {
		case <-seen:
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "was deleted") {
				t.Errorf("ended with %v", err)
			}
			return
		}
	}
}

// TestRollout_FollowReadsLeasesAndEvents checks that leases and events are read even if no watched object
// changes, for example because no manager runs.
func TestRollout_FollowReadsLeasesAndEvents(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	follower := &Follower{Config: s.Admin, Client: s.watching(), Beat: 10 * time.Millisecond, Surroundings: 10 * time.Millisecond}
	held := lease(time.Hour)
	held.Namespace = s.Namespace
	s.do(follower.Follow(ctx, s.key, func(f Facts) (bool, error) {
		if f.MachineLease != nil && len(f.Events) > 0 {
			return true, nil
		}
		if f.MachineLease == nil && held.UID == "" {
			s.do(s.Client.Create(ctx, held))
			event := &corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "MachineDeployment", Namespace: s.Namespace, Name: "pool"}, Reason: "Waits"}
			event.Namespace, event.Name = s.Namespace, "waits"
			s.do(s.Client.Create(ctx, event))
		}
		return false, nil
	}))
}

// TestRollout_FollowDetectsRecreatedDeployment checks that a new deployment of the same name is not mistaken for the
// deleted one.
func TestRollout_FollowDetectsRecreatedDeployment(t *testing.T) {
	s := newServer(t)
	seen, ended := s.follow(t.Context())
	s.until(seen, ended, "the first state", available(3))
	s.cable.set(errors.New("the cable is cut"))
	s.do(s.Client.Delete(t.Context(), &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: s.key.Name}}))
	again := give().deployment
	again.ObjectMeta = metav1.ObjectMeta{Namespace: s.key.Namespace, Name: s.key.Name}
	s.do(s.Client.Create(t.Context(), again))
	s.cable.set(nil)
	for {
		select {
		case <-seen:
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "was deleted") {
				t.Errorf("ended with %v", err)
			}
			return
		}
	}
}

func (s *server) watching() client.WithWatch {
	s.t.Helper()
	c, err := client.NewWithWatch(s.Admin, client.Options{Scheme: env.NewScheme()})
	s.do(err)
	return c
}

// TestRollout_FollowReturnsReadErrors checks that Follow returns an error instead of waiting forever.
func TestRollout_FollowReturnsReadErrors(t *testing.T) {
	s := newServer(t)
	refused := errors.New("no")
	c := interceptor.NewClient(s.watching(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*v1alpha1.MachineList); ok {
				return refused
			}
			return c.List(ctx, list, opts...)
		},
	})
	err := (&Follower{Config: s.Admin, Client: c}).Follow(t.Context(), s.key, func(Facts) (bool, error) { return true, nil })
	if !errors.Is(err, refused) || !strings.Contains(err.Error(), "listing machines") {
		t.Errorf("ended with %v", err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
