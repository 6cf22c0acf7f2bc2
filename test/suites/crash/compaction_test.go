package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/serverfault"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestFaults_EtcdIsCompacted compacts etcd after the manager's watches have terminated and missed changes. The watches
// cannot resume, so the manager must list again.
func TestFaults_EtcdIsCompacted(t *testing.T) {
	tier.All(t)
	t.Attr("fault", "etcd is compacted while the manager misses the start of a rolling update, and again during the update")
	own := env.New(t, env.WithOwn(), env.WithoutWatchCache())
	l := &lane{nodes: withAllKinds(t, own.Cluster)}
	s, c := called("rolling update"), &compaction{cluster: own.Cluster}
	s.act = inTurn(c.during(s.act), awaitThat("a Machine of the new class", anyOf(newClass)), c.during(nil))
	if result := l.play(t, s, nil, sound); result.err != nil {
		t.Errorf("%v\n%s", result.err, result.transcript)
	}
	t.Attr("outcome", fmt.Sprintf("%d watches cannot resume; the rolling update completes within its bounds", c.expired.Load()))
}

// compaction compacts etcd while a manager does not watch.
type compaction struct {
	cluster *env.Cluster
	// expired counts watches that were rejected because their revision is compacted.
	expired atomic.Int64
}

// during terminates all watches, runs a function, compacts etcd, and permits watches again. If the function is
// nil, only two writes are made: everything before the last one is compacted.
func (c *compaction) during(act func(context.Context, *run) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		before, release := c.expired.Load(), make(chan struct{})
		var waiting atomic.Int64
		r.servers.control.fault.Store(&serverfault.Fault{Name: "holds watches", Every: 1, Concerns: serverfault.Watched, Respond: func(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
			if query := r.URL.Query(); query.Get("resourceVersion") != "" && query.Get("sendInitialEvents") == "" {
				waiting.Add(1) // the watch resumes, and does not list all objects again
			}
			select {
			case <-release:
				carryOut(&firstEvent{ResponseWriter: w, see: c.see}, r)
			case <-r.Context().Done():
			}
		}})
		r.hangUp()
		if err := r.await(ctx, "watches that wait", func(context.Context, *run) error {
			if waiting.Load() == 0 {
				return errors.New("there are none")
			}
			return nil
		}); err != nil {
			return err
		}
		if act != nil {
			if err := act(ctx, r); err != nil {
				return err
			}
		}
		for _, value := range []string{"once", "twice"} {
			if err := r.patchDeployment(ctx, fmt.Sprintf(`{"metadata":{"annotations":{"written":%q}}}`, value)); err != nil {
				return err
			}
		}
		revision, err := c.cluster.Compact(ctx)
		if err != nil {
			return err
		}
		r.gate.note("etcd is compacted at revision %d", revision)
		r.servers.control.fault.Store(nil)
		close(release)
		return r.await(ctx, "a watch that cannot resume", func(context.Context, *run) error {
			if c.expired.Load() == before {
				return errors.New("all continue")
			}
			return nil
		})
	}
}

// see inspects the first event of a watch.
func (c *compaction) see(event []byte) {
	var first struct {
		Type   watch.EventType
		Object metav1.Status
	}
	if json.Unmarshal(event, &first) == nil && first.Type == watch.Error && first.Object.Reason == metav1.StatusReasonExpired {
		c.expired.Add(1)
	}
}

// firstEvent passes the first line of a response to a function.
type firstEvent struct {
	http.ResponseWriter
	see  func([]byte)
	line []byte
	seen bool
}

// Unwrap makes Flush available, so that events are forwarded immediately.
func (e *firstEvent) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *firstEvent) Write(text []byte) (int, error) {
	if !e.seen {
		e.line = append(e.line, text...)
		if line, _, ended := bytes.Cut(e.line, []byte("\n")); ended {
			e.see(line)
			e.seen, e.line = true, nil
		}
	}
	return e.ResponseWriter.Write(text)
}
