package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/guest/kube"
)

const (
	podsOfAll = "/api/v1/pods"
	// watchSeconds is the duration of a watch; the next one finds missed Pods.
	watchSeconds = 300
	// podPause is how long after a failed request for a Pod the watch is restarted.
	podPause = 5 * time.Second

	// The status of Pods that are bound to the Node.
	reasonNotRun  = "GuestRunsNoPods"
	messageNotRun = "the guest does not run Pods: this Pod never started"
)

// finished are the final phases of a Pod.
var finished = []string{"Succeeded", "Failed"}

// pod is the part of a Pod that is read.
type pod struct {
	Metadata struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		UID       string `json:"uid"`
		Deleted   string `json:"deletionTimestamp"`
		Grace     int64  `json:"deletionGracePeriodSeconds"`
	} `json:"metadata"`
	Status podStatus `json:"status"`
}

type podStatus struct {
	Phase   string `json:"phase,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

func (p *pod) path() string {
	return fmt.Sprintf("/api/v1/namespaces/%s/pods/%s", p.Metadata.Namespace, p.Metadata.Name)
}

func (p *pod) key() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// pods finishes the deletion of Pods that are bound to the Node. Pods are not run.
type pods struct {
	client *kube.Client
	node   string
	logf   func(format string, arguments ...any)
	// later calls a function once, after podPause.
	later func(func())
}

func newPods(client *kube.Client, node string, logf func(format string, arguments ...any)) *pods {
	return &pods{client: client, node: node, logf: logf, later: func(f func()) { time.AfterFunc(podPause, f) }}
}

// follow handles changes of Pods until the end of the watch, which is not an error if the server closed it. podPause
// after a failed request, it returns that error; other Pods are handled in the meantime.
func (p *pods) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	path := fmt.Sprintf("%s?watch=true&timeoutSeconds=%d&fieldSelector=%s", podsOfAll, watchSeconds, url.QueryEscape("spec.nodeName="+p.node))
	err := p.client.Watch(ctx, path, func(text json.RawMessage) (bool, error) {
		var seen pod
		if err := json.Unmarshal(text, &seen); err != nil {
			return true, fmt.Errorf("reading a pod: %w", err)
		}
		if err := p.respond(ctx, &seen); err != nil {
			p.later(func() { cancel(err) })
		}
		return false, nil
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return nil
	default:
		return err
	}
}

// respond makes the one request that a Pod's state needs; the watch then shows the result. As with a kubelet, a
// deleted Pod first becomes Failed, for which controllers with finalizers wait, and is then removed.
func (p *pods) respond(ctx context.Context, seen *pod) (err error) {
	terminating, done := seen.Metadata.Deleted != "", slices.Contains(finished, seen.Status.Phase)
	switch {
	case terminating && !done:
		err = p.setStatus(ctx, seen, "Failed")
	case terminating && seen.Metadata.Grace > 0:
		err = p.end(ctx, seen)
	case seen.Status.Phase == "Pending" && seen.Status.Reason == "":
		p.logf("pods: %s is not run", seen.key())
		err = p.setStatus(ctx, seen, "")
	}
	if kube.IsStatus(err, http.StatusNotFound) || kube.IsStatus(err, http.StatusConflict) {
		return nil // it was deleted, and perhaps created again
	}
	return err
}

// setStatus writes the Pod's status. An empty phase leaves it unchanged.
func (p *pods) setStatus(ctx context.Context, seen *pod, phase string) error {
	err := p.client.Patch(ctx, seen.path()+"/status", kube.MergePatch, map[string]any{
		"metadata": map[string]string{"uid": seen.Metadata.UID}, // not another Pod of that name
		"status":   podStatus{Phase: phase, Reason: reasonNotRun, Message: messageNotRun},
	})
	if err != nil {
		return fmt.Errorf("updating the status of pod %s: %w", seen.key(), err)
	}
	return nil
}

// end removes a Pod without a grace period.
func (p *pods) end(ctx context.Context, seen *pod) error {
	err := p.client.Delete(ctx, seen.path(), map[string]any{
		"gracePeriodSeconds": 0, "preconditions": map[string]string{"uid": seen.Metadata.UID},
	})
	if err != nil {
		return fmt.Errorf("deleting pod %s: %w", seen.key(), err)
	}
	p.logf("pods: %s has ended", seen.key())
	return nil
}
