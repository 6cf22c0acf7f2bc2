package env

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Kind is the class in which a request is counted.
type Kind string

// The kinds of requests.
const (
	// Work is every request on an API object that is none of the others. Budgets
	// are about these.
	Work Kind = "work"
	// Watch is a watch that began.
	Watch Kind = "watch"
	// Lease is any other request on leases.
	Lease Kind = "lease"
	// Event is any other request on events, of the core group or of events.k8s.io.
	Event Kind = "event"
	// Discovery is a request for something that is not an API object: versions,
	// schemas, health, metrics.
	Discovery Kind = "discovery"
	// Internal is a request of the API server to itself.
	Internal Kind = "internal"
)

// Request is one request that an API server has answered.
type Request struct {
	// Time is when the API server received it.
	Time time.Time
	// Verb is Kubernetes' verb: get, list, watch, create, update, patch, delete or
	// deletecollection; the HTTP method in lower case for Discovery.
	Verb string
	// Group is the API group, "" for the core group.
	Group string
	// Resource is the plural name, with the subresource if there is one: "nodes",
	// "pods/eviction". It is "" for Discovery.
	Resource string
	// Namespace and Name are those of the object; Name is "" for list, watch and
	// for most creates.
	Namespace, Name string
	// User is the authenticated user.
	User string
	// UserAgent is as the client sent it.
	UserAgent string
	// Code is the HTTP status of the answer.
	Code int
	// URI is the path and query.
	URI string
	// Refused tells that the request was refused before it reached the API: its
	// user may not do that.
	Refused bool
}

// Agent returns the program's name and version of the user agent, without platform
// and commit.
func (r Request) Agent() string {
	agent, _, _ := strings.Cut(r.UserAgent, " ")
	return agent
}

// Kind returns the class in which the request is counted.
func (r Request) Kind() Kind {
	switch {
	case r.User == "system:apiserver":
		return Internal
	case r.Resource == "":
		return Discovery
	case r.Verb == "watch":
		return Watch
	default:
		return kindOf(r.Group, r.Resource)
	}
}

// kindOf is the class of requests on API objects, watches aside.
func kindOf(group, resource string) Kind {
	switch base, _ := splitResource(resource); {
	case group == "coordination.k8s.io" && base == "leases":
		return Lease
	case base == "events" && (group == "" || group == "events.k8s.io"):
		return Event
	default:
		return Work
	}
}

func splitResource(resource string) (base, subresource string) {
	base, subresource, _ = strings.Cut(resource, "/")
	return base, subresource
}

// auditEvent is what is read of an Event of audit.k8s.io/v1.
type auditEvent struct {
	Stage      string `json:"stage"`
	RequestURI string `json:"requestURI"`
	Verb       string `json:"verb"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	UserAgent string `json:"userAgent"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestReceivedTimestamp time.Time         `json:"requestReceivedTimestamp"`
	Annotations              map[string]string `json:"annotations"`
}

// request returns the request that the event tells of, and false if another event
// does: one request may have several, one for each of its stages.
func (e auditEvent) request() (Request, bool) {
	// A watch counts when it begins, since its end may be far away. It has no
	// beginning if it was refused.
	const began, done, panicked = "ResponseStarted", "ResponseComplete", "Panic"
	if e.Verb == "watch" && e.ResponseStatus.Code < 300 {
		if e.Stage != began {
			return Request{}, false
		}
	} else if e.Stage != done && e.Stage != panicked {
		return Request{}, false
	}
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	return Request{
		Time: e.RequestReceivedTimestamp, Verb: e.Verb, Group: e.ObjectRef.APIGroup, Resource: resource,
		Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name, User: e.User.Username, UserAgent: e.UserAgent,
		Code: e.ResponseStatus.Code, URI: e.RequestURI,
		Refused: e.Annotations["authorization.k8s.io/decision"] == "forbid",
	}, true
}

// auditTail reads an audit log from some place on, line by line, while it grows.
type auditTail struct {
	file   *os.File
	reader *bufio.Reader
	half   []byte // a line whose end has not been written yet
}

// tailAudit opens the log at its present end.
func tailAudit(path string) (*auditTail, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	if _, err := file.Seek(0, io.SeekEnd); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &auditTail{file: file, reader: bufio.NewReader(file)}, nil
}

// next returns the next whole line, nil if there is none at present.
func (a *auditTail) next() (*auditEvent, error) {
	part, err := a.reader.ReadBytes('\n')
	a.half = append(a.half, part...)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	line := a.half
	a.half = nil
	event := &auditEvent{}
	if err := json.Unmarshal(bytes.TrimSpace(line), event); err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	return event, nil
}
