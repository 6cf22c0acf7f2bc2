package v1alpha1

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMillwrightClusterStatus_ReadsBothFormatsOfFailureDomains checks that a status is read as either contract of Cluster
// API defines it, and is written as the newer one does.
func TestMillwrightClusterStatus_ReadsBothFormatsOfFailureDomains(t *testing.T) {
	yes := true
	want := MillwrightClusterStatus{Ready: true, FailureDomains: []FailureDomain{
		{Name: "a", ControlPlane: &yes}, {Name: "b", Attributes: map[string]string{"rack": "7"}},
	}}
	const list = `{"ready":true,"failureDomains":[{"name":"a","controlPlane":true},{"name":"b","attributes":{"rack":"7"}}]}`
	for name, text := range map[string]string{
		"a list": list,
		"a map":  `{"ready":true,"failureDomains":{"b":{"attributes":{"rack":"7"}},"a":{"controlPlane":true}}}`,
	} {
		got := MillwrightClusterStatus{FailureDomains: []FailureDomain{{Name: "before"}}}
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if text, err := json.Marshal(want); err != nil || string(text) != list {
		t.Errorf("written as %s, %v", text, err)
	}
	for _, text := range []string{`{}`, `{"failureDomains":null}`, `{"failureDomains":{}}`, `{"failureDomains":[]}`} {
		var got MillwrightClusterStatus
		if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.FailureDomains) != 0 {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	var got MillwrightClusterStatus
	if json.Unmarshal([]byte(`{"failureDomains":"a"}`), &got) == nil {
		t.Error("a text is accepted")
	}
}
