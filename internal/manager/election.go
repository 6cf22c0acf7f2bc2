package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/go-logr/logr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/tasks"
)

// Election configures leader election. Its times follow client-go: a leader renews its
// leases every RetryPeriod, gives up when it could not for RenewDeadline, and others
// take over LeaseDuration after the last renewal.
type Election struct {
	// Enabled is false if this is the only process.
	Enabled                                   bool
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

func (e Election) apply(options *ctrl.Options, cfg Config, runner *tasks.Runner) error {
	if !e.Enabled {
		return nil
	}
	lock, err := newLock(cfg, runner)
	if err != nil {
		return err
	}
	options.LeaderElection = true
	options.LeaderElectionResourceLockInterface = lock
	options.LeaderElectionReleaseOnCancel = true
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = &e.LeaseDuration, &e.RenewDeadline, &e.RetryPeriod
	return nil
}

// lock is both leases of MCM's two processes: who does the work of both must keep out
// either. It is not given away while a task of this process runs; then it runs out.
type lock struct {
	resourcelock.Interface
	idle func() bool
	log  logr.Logger
	// holder is whom this stand-by last saw leading.
	holder atomic.Value
}

func newLock(cfg Config, runner *tasks.Runner) (*lock, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	// Leases are renewed on a connection and under a limit of their own, so that a flood
	// of other requests costs nobody the leadership.
	clients, err := kubernetes.NewForConfig(apart(cfg.Control))
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	identity := resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())}
	lease := func(name string) (resourcelock.Interface, error) {
		return resourcelock.New(resourcelock.LeasesResourceLock, cfg.Namespace, name, clients.CoreV1(), clients.CoordinationV1(), identity)
	}
	primary, err := lease(v1alpha1.LeaseMachineController)
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	secondary, err := lease(v1alpha1.LeaseMachineControllerManager)
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	return &lock{
		Interface: &resourcelock.MultiLock{Primary: primary, Secondary: secondary},
		idle:      runner.Idle,
		log:       cfg.Log.WithName("election"),
	}, nil
}

// apart is the same access with connections and limits of its own.
func apart(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 20, 40
	return config
}

// Get also says, once for each holder, for whom this process stands by.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err != nil {
		return record, raw, err //nolint:wrapcheck // client-go looks for its own errors
	}
	if holder := record.HolderIdentity; holder != "" && holder != l.Identity() && l.holder.Swap(holder) != holder {
		l.log.Info("standing by: another manager holds the leases", "holder", holder,
			"leases", []string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager})
	}
	return record, raw, nil
}

var errBusy = errors.New("a task still runs; the leases are left to run out")

// Update refuses to give the leases away while a task runs.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && !l.idle() {
		return errBusy
	}
	return l.Interface.Update(ctx, record) //nolint:wrapcheck // client-go looks for its own errors
}
