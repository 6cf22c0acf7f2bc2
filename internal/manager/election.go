package manager

import (
	"fmt"
	"net"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// Election configures leader election. Its times follow client-go: a leader renews its
// leases every RetryPeriod, gives up when it could not for RenewDeadline, and others
// take over LeaseDuration after the last renewal.
type Election struct {
	// Enabled is false if this is the only process.
	Enabled bool
	// Namespace is where the leases are. Empty: that of the Config.
	Namespace string
	// ClusterAPILease is the name of the lease for APICAPI. Empty: infrav1.Lease. Those
	// for APIMCM have the names that MCM gives them.
	ClusterAPILease                           string
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
	options.NewCache = newLeaderCache(lock.won)
	options.LeaderElectionReleaseOnCancel = true
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = &e.LeaseDuration, &e.RenewDeadline, &e.RetryPeriod
	return nil
}

// newLock makes the lock that is the leases of all APIs: both of MCM's for APIMCM.
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
	made := &lock{idle: runner.Idle, won: make(chan struct{}), lost: make(chan struct{}), log: cfg.Log.WithName("election")}
	for _, name := range cfg.leases() {
		one, err := resourcelock.New(resourcelock.LeasesResourceLock, cfg.leaseNamespace(), name, clients.CoreV1(), clients.CoordinationV1(), identity)
		if err != nil {
			return nil, fmt.Errorf("leader election: %w", err)
		}
		made.leases = append(made.leases, &lease{Interface: one})
	}
	return made, nil
}

// apart is the same access with connections and limits of its own.
func apart(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 20, 40
	if config.Dial == nil {
		// client-go has all clients share a connection whose access is the same, unless they
		// dial in a way of their own. The times are its own.
		config.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return config
}
