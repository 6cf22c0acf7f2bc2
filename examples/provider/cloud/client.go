package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Client is a client of a cloud.
type Client struct {
	// URL of the cloud.
	URL string
	// Token of the user.
	Token string
}

// Error is an error response of the cloud.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Message is the cloud's error message.
	Message string
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Create creates a VM. The Error has the status 409 if a VM of that name exists.
func (c Client) Create(ctx context.Context, vm VM) (created VM, err error) {
	err = c.do(ctx, http.MethodPost, "/vms", vm, &created)
	return created, err
}

// Get returns a VM. The Error has the status 404 if it does not exist.
func (c Client) Get(ctx context.Context, id string) (vm VM, err error) {
	err = c.do(ctx, http.MethodGet, "/vms/"+url.PathEscape(id), nil, &vm)
	return vm, err
}

// List returns the VMs that have all of these tags.
func (c Client) List(ctx context.Context, tags map[string]string) (vms []VM, err error) {
	query := url.Values{}
	for key, value := range tags {
		query.Add("tag", key+"="+value)
	}
	err = c.do(ctx, http.MethodGet, "/vms?"+query.Encode(), nil, &vms)
	return vms, err
}

// Delete deletes a VM. The Error has the status 404 if it does not exist.
func (c Client) Delete(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodDelete, "/vms/"+url.PathEscape(id), nil, nil)
}

func (c Client) do(ctx context.Context, method, path string, send, receive any) error {
	var body bytes.Buffer
	if send != nil {
		if err := json.NewEncoder(&body).Encode(send); err != nil {
			return fmt.Errorf("cannot encode the request: %w", err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.URL+path, &body)
	if err != nil {
		return fmt.Errorf("cannot create the request: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+c.Token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("cannot call the cloud: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusBadRequest {
		message, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
		return &Error{Status: response.StatusCode, Message: strings.TrimSpace(string(message))}
	}
	if receive == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(receive); err != nil {
		return fmt.Errorf("cannot decode the response: %w", err)
	}
	return nil
}
