package manager

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// Election configures leader election. The leader renews its leases every RetryPeriod, and gives
// up when it could not for RenewDeadline; others take over LeaseDuration after the last renewal, or
// about half a RetryPeriod after the leader released them.
type Election struct {
	// Enabled is false if this is the only process.
	Enabled bool
	// Namespace of the leases. Empty means that of the Config.
	Namespace string
	// ClusterAPILease is the name of the lease for APICAPI. Empty means infrav1.Lease. The
	// leases for APIMCM have MCM's names.
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
	e.tell(options, lock)
	return nil
}

// tell configures controller-runtime's elector.
func (e Election) tell(options *ctrl.Options, lock *lock) {
	poll := e.poll()
	options.LeaderElection = true
	options.LeaderElectionResourceLockInterface = lock
	options.LeaderElectionReleaseOnCancel = true
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = &e.LeaseDuration, &e.RenewDeadline, &poll
}

// poll returns the shortest time between two looks of a stand-by at the leases. client-go takes up to
// 2.2 times as long: with the default RetryPeriod of 2 s and no shorter poll, leases that are
// released would lie for up to 4.4 s.
func (e Election) poll() time.Duration { return e.RetryPeriod / 4 }

// leaseNames are leases of one namespace.
type leaseNames struct {
	namespace string
	names     []string
}

// newLock returns a lock of the leases of all APIs that the manager serves: both of MCM's for APIMCM.
func newLock(cfg Config, runner *tasks.Runner) (*lock, error) {
	return newLockOf(cfg.Control, leaseNames{cfg.leaseNamespace(), cfg.leases()}, cfg.Election.RetryPeriod, runner.Idle, cfg.Log)
}

// newLockOf returns a lock of leases that are renewed at an interval. They are not released unless this
// process is idle.
func newLockOf(cluster *rest.Config, of leaseNames, interval time.Duration, idle func() bool, log logr.Logger) (*lock, error) {
	locks, err := locksOf(cluster, of)
	if err != nil {
		return nil, err
	}
	made := &lock{interval: interval, idle: idle, seen: make(chan struct{}), won: make(chan struct{}), lost: make(chan struct{}), log: log.WithName("election")}
	for _, one := range locks {
		made.leases = append(made.leases, &lease{Interface: one})
	}
	return made, nil
}

// locksOf returns the locks of leases, by which this process has one identity.
func locksOf(cluster *rest.Config, of leaseNames) (locks []resourcelock.Interface, err error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	// Leases have their own connection and rate limit: many other requests must not cost the
	// leadership.
	clients, err := kubernetes.NewForConfig(apart(cluster))
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	identity := resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())}
	for _, name := range of.names {
		one, err := resourcelock.New(resourcelock.LeasesResourceLock, of.namespace, name, clients.CoreV1(), clients.CoordinationV1(), identity)
		if err != nil {
			return nil, fmt.Errorf("leader election: %w", err)
		}
		locks = append(locks, one)
	}
	return locks, nil
}

// apart returns a copy with its own connections and rate limit.
func apart(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 20, 40
	if config.Dial == nil {
		// client-go shares connections among clients of equal configuration without a Dial. The
		// times are client-go's.
		config.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return config
}
