package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/follow"
)

// firstAnswer limits the requests that are made before anything is followed.
const firstAnswer = 10 * time.Second

// Follower follows one deployment.
type Follower struct {
	// Config leads to the cluster. Link wraps its transport.
	Config *rest.Config
	Link   *Link
	// Client reads what is not followed.
	Client client.Client
	// Pace is the least time between two states. Beat is after what time a state is shown again though
	// nothing has changed; 0 is never.
	Pace, Beat time.Duration
	// Surroundings is how old leases and events may be; 0 leaves them out.
	Surroundings time.Duration
}

// Follow calls a function with the facts of a deployment, at once and whenever they have changed, until
// it returns true or an error. It survives outages of the API server. It is an error if the deployment
// does not exist, or is deleted.
func (f *Follower) Follow(ctx context.Context, key types.NamespacedName, see func(Facts) (enough bool, err error)) error {
	short, answered := context.WithTimeout(ctx, firstAnswer)
	// Read also tries to list what is followed: a follower would retry for ever.
	first, err := Read(short, f.Client, key, client.Limit(1))
	answered()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	followed, err := follow.Start(ctx, f.Config, cache.Options{
		Scheme: f.Client.Scheme(), Mapper: f.Client.RESTMapper(),
		DefaultNamespaces: map[string]cache.Config{key.Namespace: {}},
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.MachineDeployment{}: {Field: fields.OneTermEqualSelector("metadata.name", key.Name)},
		},
	}, &v1alpha1.MachineDeployment{}, &v1alpha1.MachineSet{}, &v1alpha1.Machine{})
	if err != nil {
		return err
	}
	f.Link.onChange(followed.Notify)
	defer f.Link.onChange(nil)
	around, read := explain.PoolFacts{}, time.Time{}
	return followed.Until(ctx, f.Pace, f.Beat, func() (bool, error) {
		facts, err := Read(ctx, followed, key)
		switch {
		case errors.Is(err, errNotFound) || err == nil && facts.Deployment.UID != first.Deployment.UID:
			return false, fmt.Errorf("machine deployment %s was deleted", key)
		case err != nil:
			return false, err
		case facts.Deployment.Generation < first.Deployment.Generation: // older than what was read before
			return false, nil
		}
		if f.Surroundings > 0 && time.Since(read) >= f.Surroundings {
			around, read = readSurroundings(ctx, f.Client, facts), time.Now()
		}
		facts.Lease, facts.MachineLease, facts.Events, facts.Problem = around.Lease, around.MachineLease, around.Events, f.Link.Problem()
		return see(facts)
	})
}

// Link knows whether an API server sends the changes that a Follower waits for. Clients must be made
// from a configuration whose transport it wraps.
type Link struct {
	mu sync.Mutex
	// away are the resources whose last list or watch failed. Each is retried by itself.
	away    map[string]bool
	problem string
	changed func()
}

// Wrap is for rest.Config.Wrap.
func (l *Link) Wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		resource, is := followed(request.URL.Path)
		switch {
		case !is || request.Context().Err() != nil: // we ended it
		case err != nil:
			l.set(resource, fmt.Sprintf("%s: %v", request.URL.Host, inner(err)))
		case refusal(response.StatusCode):
			l.set(resource, fmt.Sprintf("%s: %s", request.URL.Host, response.Status))
		default:
			l.set(resource, "")
		}
		return response, err
	})
}

// followed returns the resource of /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE, if the group is
// that of what is followed.
func followed(path string) (resource string, is bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	const namespaced = 6
	if len(parts) < namespaced {
		return "", false
	}
	parts = parts[len(parts)-namespaced:] // an API server may be below a path
	return parts[5], parts[0] == "apis" && parts[1] == v1alpha1.GroupName && parts[3] == "namespaces"
}

// refusal reports whether an answer means that no changes will come.
func refusal(code int) bool {
	return code >= http.StatusInternalServerError || code == http.StatusUnauthorized || code == http.StatusForbidden
}

// inner is an error without the connection that it is about.
func inner(err error) error {
	if of, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w", of.Op, of.Err)
	}
	return err
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// set records the result of a request. The first of several problems is kept until no resource fails.
func (l *Link) set(resource, problem string) {
	l.mu.Lock()
	was := l.problem
	if problem == "" {
		delete(l.away, resource)
	} else {
		if l.away == nil {
			l.away = map[string]bool{}
		}
		l.away[resource] = true
		l.problem = cmp.Or(l.problem, problem)
	}
	if len(l.away) == 0 {
		l.problem = ""
	}
	call := l.changed
	if l.problem == was {
		call = nil
	}
	l.mu.Unlock()
	if call != nil {
		call()
	}
}

// Problem returns why changes do not come; empty if all come.
func (l *Link) Problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problem
}

// onChange sets the function that is called when Problem changes; nil for none.
func (l *Link) onChange(call func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = call
}
