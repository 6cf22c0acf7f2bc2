package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
)

// profileSeconds is the length of a CPU profile. A phase has several; pprof adds them up:
// go tool pprof DIR/scale-up-cpu-*.pb.gz.
const profileSeconds = 5

// beginProfiles takes CPU profiles of the manager until end is called, which takes a heap profile.
func (w *setup) beginProfiles(ctx context.Context, phase string) (end func() error) {
	dir := w.options.manager.profiles
	if dir == "" {
		return func() error { return nil }
	}
	stop, result := make(chan struct{}), make(chan error, 1)
	take := func(name, page string) error {
		return fetch(ctx, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/%s", w.manager.port, page), filepath.Join(dir, phase+"-"+name+".pb.gz"))
	}
	go func() {
		err := os.MkdirAll(dir, 0o755)
		for i := 1; err == nil; i++ {
			err = take(fmt.Sprintf("cpu-%d", i), fmt.Sprintf("profile?seconds=%d", w.profileSeconds))
			select {
			case <-stop:
				result <- err
				return
			default:
			}
		}
		result <- err
	}()
	return func() error {
		close(stop)
		return errors.Join(<-result, take("heap", "heap?gc=1"))
	}
}

// fetch writes a page to a file.
func fetch(ctx context.Context, url, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("taking a profile: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("taking a profile: %s answers %s", url, answer.Status)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, answer.Body)
	return errors.Join(err, file.Close())
}
