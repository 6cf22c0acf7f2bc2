package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/translate"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

const (
	// askEvery is the time between two questions to a driver.
	askEvery = 5 * time.Minute
	// askSoon is the same after a failure that may pass by itself.
	askSoon = time.Minute
)

// AskerOptions configure an Asker.
type AskerOptions struct {
	// Driver that is asked; nil if the manager's driver knows no failure domains.
	Driver driver.FailureDomains
	// DriverName is what MillwrightClusters call it.
	DriverName string
	// Live reads Secrets from the API server: each is needed a few times, and a cache would
	// need the right to read them all. Required.
	Live client.Reader
	// Run runs a task, as tasks.Runner.Go does. Required.
	Run func(task func(ctx context.Context)) bool
	// Wake is called when there is an answer. Required.
	Wake func(types.NamespacedName)
	// Clock tells the time. Required.
	Clock clock.PassiveClock
}

// Asker asks a driver for failure domains, every few minutes and apart from the passes. What
// it remembers only saves questions. Make one with NewAsker.
type Asker struct {
	AskerOptions
	mu        sync.Mutex
	inquiries map[types.NamespacedName]*inquiry
}

// NewAsker makes an Asker.
func NewAsker(opts AskerOptions) *Asker {
	return &Asker{AskerOptions: opts, inquiries: map[types.NamespacedName]*inquiry{}}
}

// question is what a driver is asked with.
type question struct {
	// of is the MillwrightCluster.
	of     types.NamespacedName
	source *infrav1.FailureDomainSource
	// class is the one that the source refers to; nil if it refers to none.
	class *v1alpha1.MachineClass
}

// print is another one for every other question.
func (q question) print() string {
	text, err := json.Marshal(q.source)
	if err != nil {
		return "" // what came as JSON can be written as JSON
	}
	if q.class == nil {
		return string(text)
	}
	return fmt.Sprintf("%s %s %d", text, q.class.UID, q.class.Generation)
}

// inquiry is what is remembered of a question.
type inquiry struct {
	print string
	// cancel ends the call that is under way; nil if none is.
	cancel context.CancelFunc
	// due is when to ask again.
	due time.Time
	// last is the last answer; told is the last one by which the driver told anything. Both
	// are nil before there is one.
	last, told *answer
}

// answer is what became of a question.
type answer struct {
	// reason and message are for people. The driver has told something if the reason is
	// ReasonFailureDomainsReported or ReasonNotSupported.
	reason, message string
	domains         []infrav1.FailureDomain
	// again is when to ask again.
	again time.Duration
}

func (a *answer) tells() bool {
	return a.reason == infrav1.ReasonFailureDomainsReported || a.reason == infrav1.ReasonNotSupported
}

// ask answers what the driver said last to this very question, and has it asked if it is
// time to. The wait is how long that has yet; 0 while it is being asked.
func (a *Asker) ask(q question) (last, told *answer, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.inquiries[q.of]
	if print := q.print(); known == nil || known.print != print {
		a.drop(q.of)
		known = &inquiry{print: print}
		a.inquiries[q.of] = known
	}
	now := a.Clock.Now()
	if known.cancel == nil && !now.Before(known.due) {
		a.start(known, q)
	}
	return known.last, known.told, max(0, known.due.Sub(now))
}

// Forget drops what is remembered for a MillwrightCluster, and cancels a call that is under
// way.
func (a *Asker) Forget(of types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(of)
}

// drop is Forget with the lock held.
func (a *Asker) drop(of types.NamespacedName) {
	if known := a.inquiries[of]; known != nil && known.cancel != nil {
		known.cancel()
	}
	delete(a.inquiries, of)
}

// start has the driver asked. The lock is held.
func (a *Asker) start(known *inquiry, q question) {
	ctx, cancel := context.WithCancel(context.Background())
	accepted := a.Run(func(leading context.Context) {
		stop := context.AfterFunc(leading, cancel)
		defer stop()
		a.finish(known, q, a.inquire(ctx, q))
	})
	if !accepted {
		cancel()
		return
	}
	known.cancel = cancel
}

// finish keeps an answer. Nobody looks at one to a question that is asked no more.
func (a *Asker) finish(known *inquiry, q question, said answer) {
	a.mu.Lock()
	known.cancel()
	known.cancel = nil
	known.last = &said
	if said.tells() {
		known.told = &said
	}
	jitter := time.Duration(rand.Float64() * 0.1 * float64(said.again))
	known.due = a.Clock.Now().Add(said.again + jitter)
	a.mu.Unlock()
	a.Wake(q.of)
}

// inquire asks the driver.
func (a *Asker) inquire(ctx context.Context, q question) answer {
	if a.Driver == nil {
		return notSupported()
	}
	data, lacking := a.secrets(ctx, q)
	if lacking != nil {
		return *lacking
	}
	objects, err := translate.Request(translate.Given{Machine: q.machine(), Class: q.class, Secret: data})
	if err != nil {
		return answer{reason: infrav1.ReasonDriverCallFailed, message: err.Error(), again: askEvery}
	}
	resp, err := a.Driver.ListFailureDomains(ctx, &driver.ListFailureDomainsRequest{MachineClass: objects.Class, Secret: objects.Secret})
	said, _ := status.FromError(err)
	switch code := said.Code(); code {
	case codes.OK:
		return answer{reason: infrav1.ReasonFailureDomainsReported, domains: domainsOf(resp), again: askEvery}
	case codes.Unimplemented:
		return notSupported()
	case codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable:
		return refused(said, askSoon)
	default:
		return refused(said, askEvery)
	}
}

func notSupported() answer {
	return answer{reason: infrav1.ReasonNotSupported, message: "The driver knows of no failure domains", again: askEvery}
}

// longestMessage is how long a message may be, in bytes: a driver's may be of any length.
const longestMessage = 4096

func refused(said *status.Status, again time.Duration) answer {
	message := said.Message()
	if len(message) > longestMessage {
		message = strings.ToValidUTF8(message[:longestMessage], "") + "…"
	}
	return answer{reason: infrav1.ReasonDriverCallFailed, message: fmt.Sprintf("ListFailureDomains: %s (%s)", message, said.Code()), again: again}
}

// machine stands for one of those that the failure domains are for.
func (q question) machine() *infrav1.MillwrightMachine {
	return &infrav1.MillwrightMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: q.of.Namespace, Name: q.of.Name},
		Spec:       infrav1.MillwrightMachineSpec{Driver: q.source.Driver, ProviderSpec: q.source.ProviderSpec},
	}
}

// secrets reads the data of the Secrets of the question. If that cannot be, the answer says
// why.
func (a *Asker) secrets(ctx context.Context, q question) (map[string][]byte, *answer) {
	data := map[string][]byte{}
	if q.class != nil {
		merged, missing, err := fieldindex.MergedSecret(ctx, a.Live, q.class)
		switch {
		case err != nil:
			return nil, &answer{reason: infrav1.ReasonDriverCallFailed, message: err.Error(), again: askSoon}
		case missing != "":
			return nil, &answer{reason: infrav1.ReasonMachineClassMissing, message: missing, again: askSoon}
		}
		maps.Copy(data, merged.Data)
	}
	if ref := q.source.CredentialsSecretRef; ref != nil {
		secret := &corev1.Secret{}
		err := a.Live.Get(ctx, types.NamespacedName{Namespace: q.of.Namespace, Name: ref.Name}, secret)
		switch {
		case apierrors.IsNotFound(err):
			message := fmt.Sprintf("Secret %q of spec.failureDomainsFrom.credentialsSecretRef does not exist", ref.Name)
			return nil, &answer{reason: infrav1.ReasonCredentialsMissing, message: message, again: askSoon}
		case err != nil:
			return nil, &answer{reason: infrav1.ReasonDriverCallFailed, message: fmt.Sprintf("reading Secret %s: %v", ref.Name, err), again: askSoon}
		}
		maps.Copy(data, secret.Data)
	}
	return data, nil
}

// longestName is how long the name of a failure domain may be, in bytes.
const longestName = 256

// domainsOf are those that a driver tells, sorted and each once: whatever it says must not
// keep the status from being written.
func domainsOf(resp *driver.ListFailureDomainsResponse) []infrav1.FailureDomain {
	named := map[string]infrav1.FailureDomain{}
	for _, domain := range resp.FailureDomains {
		if domain.Name != "" && len(domain.Name) <= longestName {
			named[domain.Name] = infrav1.FailureDomain{Name: domain.Name, ControlPlane: new(true), Attributes: maps.Clone(domain.Attributes)}
		}
	}
	domains := make([]infrav1.FailureDomain, 0, len(named))
	for _, name := range slices.Sorted(maps.Keys(named)) {
		domains = append(domains, named[name])
	}
	return domains
}
