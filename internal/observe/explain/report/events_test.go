package report

import "testing"

func TestMentions(t *testing.T) {
	for text, want := range map[string]bool{
		"Deleted 1 machine (pool-a-1): it failed": true,
		"pool-a-1":                         true,
		"machine pool-a-1.":                true,
		"machine pool-a-1. It":             true,
		"(pool-a-0, pool-a-1 and 2 more)":  true,
		"pool-a-12 and pool-a-1":           true,
		"pool-a-12":                        false,
		"my-pool-a-1":                      false,
		"pool-a-1-x":                       false,
		"pool-a-1.example.com":             false,
		"cloud:///pool-a-10/pool-a-11/etc": false,
		"":                                 false,
	} {
		if got := mentions(text, "pool-a-1"); got != want {
			t.Errorf("%qis found: %t", text, got)
		}
	}
}
