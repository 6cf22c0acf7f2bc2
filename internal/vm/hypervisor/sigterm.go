package hypervisor

import (
	"os"
	"os/signal"
	"syscall"
)

// SecondSIGTERM returns a channel for Config.SecondSIGTERM. It receives a value for each SIGTERM that this process
// gets after the first one. The caller must call stop.
func SecondSIGTERM() (second <-chan struct{}, stop func()) {
	signals, again, done := make(chan os.Signal, 2), make(chan struct{}, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		for first := true; ; first = false {
			select {
			case <-done:
				return
			case <-signals:
			}
			if first {
				continue
			}
			select {
			case again <- struct{}{}:
			default: // the previous value was not received yet
			}
		}
	}()
	return again, func() {
		signal.Stop(signals)
		close(done)
	}
}
