package qemu

import (
	"encoding/json"
	"testing"
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
