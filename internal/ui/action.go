package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Action is a change that a user can request on an object. The page shows its command and asks before it is done.
type Action struct {
	// Name identifies the action.
	Name string
	// Kind is the kind of the objects: "pool", "machine" or "vm".
	Kind string
	// Title is the text of the button.
	Title string
	// Effect is a sentence that describes what happens.
	Effect string
	// Input is what the user enters: "replicas", "revision", "host", or "" for nothing.
	Input string
	// Interrupts reports whether workloads can be interrupted.
	Interrupts bool
	// Command returns the command that does the same.
	Command func(Request) []string
	// Do performs the action, and returns what was done as a clause.
	Do func(context.Context, Request) (string, error)
}

// ActionAbout is what the page shows of an action before a user chooses it.
type ActionAbout struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	Title      string `json:"title"`
	Effect     string `json:"effect"`
	Input      string `json:"input,omitempty"`
	Interrupts bool   `json:"interrupts,omitempty"`
}

func (a Action) about() ActionAbout {
	return ActionAbout{a.Name, a.Kind, a.Title, a.Effect, a.Input, a.Interrupts}
}

// Request selects an action and an object.
type Request struct {
	Action    string `json:"action"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Replicas is the desired number of Machines. It is required for actions with that input.
	Replicas *int32 `json:"replicas,omitempty"`
	// Revision is the revision to roll back to, or 0 for the previous one.
	Revision int64 `json:"revision,omitempty"`
	// Host is the host to migrate to, or empty for any.
	Host string `json:"host,omitempty"`
}

// Plan is the command that an action stands for.
type Plan struct {
	Command string `json:"command"`
}

// Done is the result of an action.
type Done struct {
	Done string `json:"done"`
}

// errInvalid is returned for requests that the page does not send.
var errInvalid = errors.New("invalid request")

// plan returns the command of an action without doing it.
func (s *view) plan(r *http.Request) (any, error) {
	action, request, err := s.requested(r)
	if err != nil {
		return nil, err
	}
	return Plan{Quote(action.Command(request))}, nil
}

// do performs an action.
func (s *view) do(ctx context.Context, r *http.Request) (any, error) {
	action, request, err := s.requested(r)
	if err != nil {
		return nil, err
	}
	done, err := action.Do(ctx, request)
	return Done{done}, err
}

const maxRequest = 16 << 10

func (s *view) requested(r *http.Request) (Action, Request, error) {
	var request Request
	decoder := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxRequest))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		return Action{}, request, fmt.Errorf("%w: %w", errInvalid, err)
	}
	for _, action := range s.options.Actions {
		if action.Name != request.Action {
			continue
		}
		if action.Input == "replicas" && (request.Replicas == nil || *request.Replicas < 0) {
			return action, request, fmt.Errorf("%w: the number of replicas must be 0 or more", errInvalid)
		}
		return action, request, nil
	}
	return Action{}, request, fmt.Errorf("%w: unknown action %q", errInvalid, request.Action)
}

// Quote returns arguments as a command for a POSIX shell.
func Quote(arguments []string) string {
	quoted := make([]string, 0, len(arguments))
	for _, argument := range arguments {
		if argument == "" || strings.Trim(argument, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@,+%") != "" {
			argument = "'" + strings.ReplaceAll(argument, "'", `'\''`) + "'"
		}
		quoted = append(quoted, argument)
	}
	return strings.Join(quoted, " ")
}
