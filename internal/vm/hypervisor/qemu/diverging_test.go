package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// The inputs are excerpts of responses to query-migrate.
func TestMigration_Diverging(t *testing.T) {
	for name, test := range map[string]struct {
		info string
		want bool
	}{
		"first pass":               {`{"status": "active", "ram": {"dirty-sync-count": 1, "dirty-pages-rate": 0, "page-size": 4096, "mbps": 8}}`, false},
		"converges":                {`{"status": "active", "ram": {"dirty-sync-count": 3, "dirty-pages-rate": 100, "page-size": 4096, "mbps": 8}}`, false},
		"writes faster":            {`{"status": "active", "ram": {"dirty-sync-count": 3, "dirty-pages-rate": 1000, "page-size": 4096, "mbps": 8}}`, true},
		"writes faster, too early": {`{"status": "active", "ram": {"dirty-sync-count": 2, "dirty-pages-rate": 1000, "page-size": 4096, "mbps": 8}}`, false},
		"many passes":              {`{"status": "active", "ram": {"dirty-sync-count": 10, "dirty-pages-rate": 1, "page-size": 4096, "mbps": 8}}`, true},
		"throttled":                {`{"status": "active", "cpu-throttle-percentage": 20, "ram": {"dirty-sync-count": 2}}`, true},
		"nothing sent yet":         {`{"status": "active", "ram": {"dirty-sync-count": 3, "dirty-pages-rate": 0, "page-size": 4096, "mbps": 0}}`, false},
		"stopped":                  {`{"status": "pre-switchover", "ram": {"dirty-sync-count": 20}}`, false},
		"completed":                {`{"status": "completed", "ram": {"dirty-sync-count": 20}}`, false},
		"setup":                    {`{"status": "setup"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			var info migrationInfo
			must(t, json.Unmarshal([]byte(test.info), &info))
			if got := info.diverging(); got != test.want {
				t.Errorf("diverging = %t, want %t", got, test.want)
			}
		})
	}
}

// scribesDirties is the byte of scribes that makes it write to half a MiB of memory before each number.
const scribesDirties = 508

// QEMU slows down the CPUs of a guest that writes memory faster than it is sent, if that is permitted.
func TestMigration_AutoConverge(t *testing.T) {
	tier.All(t)
	for name, permitted := range map[string]bool{"permitted": true, "not permitted": false} {
		t.Run(name, func(t *testing.T) {
			l, console := newPairOf(t, func(t *testing.T, guest []byte) Config {
				if guest != nil {
					guest[scribesDirties] = 1
				}
				return pairMachine(t, guest)
			})
			l.source.emulated = false // copies while the guest runs, as with KVM
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var info migrationInfo
			err := l.source.Send(ctx, Destination{Bandwidth: 256 << 10, Downtime: time.Millisecond, AutoConverge: permitted}, func(Progress) {
				now, err := l.source.queryMigration(ctx)
				if err == nil {
					info = now
				}
				if info.Throttle > 0 || info.RAM.Passes >= maxPasses {
					cancel()
				}
			})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("the copy did not continue until it was canceled: %v", err)
			}
			if (info.Throttle > 0) != permitted {
				t.Errorf("the CPUs are slowed down by %d %% after %d passes", info.Throttle, info.RAM.Passes)
			}
			l.cut()
			must(t, l.source.Abandon(bounded(t)))
			console.numbers(100)
			must(t, l.source.Kill(bounded(t)))
		})
	}
}
