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

// firstAnswer limits the requests that are made before anything is followed.
const firstAnswer = 10 * time.Second

// Follower follows one deployment.
type Follower struct {
	// Config leads to the cluster.
	Config *rest.Config
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

// around reads leases and events. What the user may not read, or is not answered, is missing.
func (f *Follower) around(ctx context.Context, facts Facts) pool.Facts {
	ctx, cancel := context.WithTimeout(ctx, surroundingsTimeout)
	defer cancel()
	return gather.Reader{Control: f.Client}.Around(ctx, facts.Facts)
}
