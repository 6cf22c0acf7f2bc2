package env

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Compact makes etcd discard all revisions except the last one, and returns that revision. An API server with a
// watch cache continues to serve older revisions from memory.
func (c *Cluster) Compact(ctx context.Context) (revision int64, err error) {
	if revision, err = c.revision(ctx); err != nil {
		return 0, err
	}
	request := map[string]any{"revision": fmt.Sprint(revision), "physical": true}
	if err := c.etcd(ctx, "/v3/kv/compaction", request, &struct{}{}); err != nil {
		return 0, fmt.Errorf("compacting revision %d: %w", revision, err)
	}
	return revision, nil
}

// revisionOf is a response of etcd.
type revisionOf struct {
	Header struct {
		Revision int64 `json:"revision,string"`
	} `json:"header"`
}

// revision returns the last revision of etcd.
func (c *Cluster) revision(ctx context.Context) (int64, error) {
	var last revisionOf
	key := []byte{0} // the lowest key, which need not exist
	if err := c.etcd(ctx, "/v3/kv/range", map[string]any{"key": key}, &last); err != nil {
		return 0, fmt.Errorf("reading the revision: %w", err)
	}
	return last.Header.Revision, nil
}

// raise writes to etcd until its revision is higher than the given one.
func (c *Cluster) raise(ctx context.Context, to int64) error {
	for revision := int64(0); revision <= to; {
		var written revisionOf
		if err := c.etcd(ctx, "/v3/kv/put", map[string]any{"key": []byte("raised")}, &written); err != nil {
			return fmt.Errorf("raising the revision: %w", err)
		}
		revision = written.Header.Revision
	}
	return nil
}

// etcd sends a JSON request to the gateway of etcd.
func (c *Cluster) etcd(ctx context.Context, path string, request, result any) error {
	url, access := c.ControlPlane.Etcd()
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	sender := &http.Client{Transport: &http.Transport{TLSClientConfig: access, DisableKeepAlives: true}}
	response, err := sender.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("etcd returned %s: %s", response.Status, text)
	}
	return json.Unmarshal(text, result)
}
