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

// Election configures leader election. The leader renews its leases every RetryPeriod, and gives up leadership
// if it could not renew them for RenewDeadline. Another process takes over LeaseDuration after the last
// renewal, or about half a RetryPeriod after the leader released the leases.
type Election struct {
	// Enabled must be true if there are other processes.
	Enabled bool
	// Namespace is the namespace of the leases. Empty means the namespace of the Config.
	Namespace string
	// ClusterAPILease is the name of the lease for APICAPI. Empty means infrav1.Lease. The leases for APIMCM
	// have the same names as MCM's.
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
	e.configure(options, lock)
	return nil
}

// configure sets the options of controller-runtime's leader elector.
func (e Election) configure(options *ctrl.Options, lock *lock) {
	poll := e.poll()
	options.LeaderElection = true
	options.LeaderElectionResourceLockInterface = lock
	options.LeaderElectionReleaseOnCancel = true
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = &e.LeaseDuration, &e.RenewDeadline, &poll
}

// poll returns the shortest interval at which a standby process checks the leases. The interval of client-go is
// up to 2.2 times as long. If it were the default RetryPeriod of 2 s, released leases would be unused for up to
// 4.4 s.
func (e Election) poll() time.Duration { return e.RetryPeriod / 4 }

// leaseNames are leases of one namespace.
type leaseNames struct {
	namespace string
	names     []string
}

// newLock returns a lock of the leases of all APIs that the manager serves. APIMCM uses both of MCM's leases.
func newLock(cfg Config, runner *tasks.Runner) (*lock, error) {
	of := leaseNames{cfg.leaseNamespace(), cfg.leases()}
	if cfg.Seed == nil {
		return newLockOf(cfg.Control, of, cfg.Election, runner.Idle, cfg.Log)
	}
	clients, err := cfg.Seed.separate(cfg.Control)
	if err != nil {
		return nil, err
	}
	locks, err := locksWith(clients, of)
	if err != nil {
		return nil, err
	}
	return newLockFrom(locks, cfg.Election, runner.Idle, cfg.Log), nil
}

// newLockOf returns a lock of leases. They are released only while this process is idle.
func newLockOf(cluster *rest.Config, of leaseNames, times Election, idle func() bool, log logr.Logger) (*lock, error) {
	locks, err := locksOf(cluster, of)
	if err != nil {
		return nil, err
	}
	return newLockFrom(locks, times, idle, log), nil
}

func newLockFrom(locks []resourcelock.Interface, times Election, idle func() bool, log logr.Logger) *lock {
	made := &lock{interval: times.RetryPeriod, deadline: times.RenewDeadline, idle: idle, seen: make(chan struct{}), won: make(chan struct{}), lost: make(chan struct{}), log: log.WithName("election")}
	for _, one := range locks {
		made.leases = append(made.leases, &lease{Interface: one})
	}
	return made
}

// locksOf returns locks of the leases, in which this process has the same identity.
func locksOf(cluster *rest.Config, of leaseNames) ([]resourcelock.Interface, error) {
	// Leases have their own connection and rate limit, so that this process does not lose leadership because of
	// many other requests.
	clients, err := kubernetes.NewForConfig(apart(cluster))
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	return locksWith(clients, of)
}

// locksWith is like locksOf, with a client for leases.
func locksWith(clients kubernetes.Interface, of leaseNames) (locks []resourcelock.Interface, err error) {
	host, err := os.Hostname()
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

// separateQPS and separateBurst limit the requests for leases, and those for events.
const (
	separateQPS   = 20
	separateBurst = 40
)

// apart returns a copy of a config with its own connections and rate limit.
func apart(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = separateQPS, separateBurst
	if config.Dial == nil {
		// Without Dial, client-go shares connections among clients with equal configurations. The durations are
		// the defaults of client-go.
		config.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return config
}
