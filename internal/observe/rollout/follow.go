package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/gather"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
	"github.com/millwright-dev/millwright/internal/observe/follow"
)

// firstReadTimeout limits the requests that are made before the watches start.
const firstReadTimeout = 10 * time.Second

// Follower follows one deployment.
type Follower struct {
	// Config is the client configuration of the cluster.
	Config *rest.Config
	// Client reads the objects that are not watched.
	Client client.Client
	// Pace is the minimum time between two states. Beat is the time after which a state is shown again
	// without a change; if 0, it is not.
	Pace, Beat time.Duration
	// Surroundings is the maximum age of leases and events; if 0, they are not read.
	Surroundings time.Duration
}

// Follow calls see with the facts of a deployment, immediately and after every change, until see
// returns true or an error. It continues after outages of the API server. It returns an error if
// the deployment does not exist or is deleted.
func (f *Follower) Follow(ctx context.Context, key types.NamespacedName, see func(Facts) (enough bool, err error)) error {
	short, stop := context.WithTimeout(ctx, firstReadTimeout)
	// Read also tries the lists, because a follower would retry a forbidden list forever.
	first, err := Read(short, f.Client, key, client.Limit(1))
	stop()
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
	around, read := pool.Facts{}, time.Time{}
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
			around, read = f.around(ctx, facts), time.Now()
		}
		facts.Lease, facts.MachineLease, facts.Events, facts.Problem = around.Lease, around.MachineLease, around.Events, followed.Problem()
		return see(facts)
	})
}

const surroundingsTimeout = 3 * time.Second

// around reads leases and events. Those that the user has no permission to read, or that the server
// does not return in time, are missing.
func (f *Follower) around(ctx context.Context, facts Facts) pool.Facts {
	ctx, cancel := context.WithTimeout(ctx, surroundingsTimeout)
	defer cancel()
	return gather.Reader{Control: f.Client}.Around(ctx, facts.Facts)
}
