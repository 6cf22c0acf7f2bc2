package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/millwright-dev/millwright/internal/pluginserver"
)

// await serves drivers in other processes until the selected one has registered. It is served until it is
// closed, even after ctx is done: the machines of an interrupted command may have to be deleted.
func (f *Flags) await(ctx context.Context, out io.Writer) (*Opened, error) {
	endpoints, err := f.plugins.Open()
	if err != nil {
		return nil, err
	}
	added := make(chan *pluginserver.Driver, 1)
	log := &untilClosed{out: out}
	drivers := pluginserver.New(pluginserver.Options{Log: logTo(log), Add: func(kind string, d *pluginserver.Driver) error {
		if !strings.EqualFold(kind, f.Name) {
			return fmt.Errorf("this command waits for driver %q", f.Name)
		}
		added <- d
		return nil
	}})
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	all, serving := errgroup.WithContext(background)
	var addresses []string
	for _, endpoint := range endpoints {
		addresses = append(addresses, endpoint.String())
		all.Go(func() error { return drivers.Serve(serving, endpoint) })
	}
	closing := sync.OnceFunc(func() {
		log.close() // the driver is expected to disconnect now
		cancel()
		_ = all.Wait() // a failure has already stopped the waiting
	})
	fmt.Fprintf(log, "Waiting for driver %q to register at %s\n", f.Name, strings.Join(addresses, " or "))
	d, err := f.first(ctx, serving, added)
	if err == nil {
		return &Opened{Driver: d, Close: closing}, nil
	}
	closing()
	if errors.Is(err, errServing) {
		err = all.Wait()
	}
	return nil, err
}

var errServing = errors.New("drivers cannot be served")

// first waits for the driver.
func (f *Flags) first(ctx, serving context.Context, added <-chan *pluginserver.Driver) (*pluginserver.Driver, error) {
	timer := time.NewTimer(f.wait)
	defer timer.Stop()
	select {
	case d := <-added:
		return d, nil
	case <-timer.C:
		return nil, fmt.Errorf("driver %q has not registered within %s (--driver-wait); check that it runs and uses this address", f.Name, f.wait)
	case <-serving.Done():
		return nil, errServing
	case <-ctx.Done():
		return nil, fmt.Errorf("driver %q has not registered: %w", f.Name, context.Cause(ctx))
	}
}

// logTo logs registrations and rejections, without timestamps.
func logTo(out io.Writer) logr.Logger {
	return logr.FromSlogHandler(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(groups []string, attr slog.Attr) slog.Attr {
		if len(groups) == 0 && (attr.Key == slog.TimeKey || attr.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return attr
	}}))
}

// untilClosed forwards text until it is closed. It is safe for concurrent use.
type untilClosed struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *untilClosed) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(text)
}

func (w *untilClosed) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = io.Discard
}
