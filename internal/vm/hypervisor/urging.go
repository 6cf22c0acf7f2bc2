package hypervisor

import (
	"os"
	"os/signal"
	"syscall"
)

// Urging returns a channel for Config.Urged, which receives when this process gets another SIGTERM than the first
// one. It ends with stop.
func Urging() (urged <-chan struct{}, stop func()) {
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
			default: // it is known
			}
		}
	}()
	return again, func() {
		signal.Stop(signals)
		close(done)
	}
}
