package v1alpha1

import (
	"bytes"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/json"
)

// UnmarshalJSON also reads failure domains in the format of contract v1beta1, in which they are a map by their names.
// It sorts these by name.
func (s *MillwrightClusterStatus) UnmarshalJSON(raw []byte) error {
	type plain MillwrightClusterStatus // without this method
	read := struct {
		plain
		FailureDomains failureDomains `json:"failureDomains"`
	}{plain: plain(*s)}
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	*s = MillwrightClusterStatus(read.plain)
	s.FailureDomains = read.FailureDomains
	return nil
}

// failureDomains is a list of failure domains that is read from a list or a map.
type failureDomains []FailureDomain

// UnmarshalJSON implements json.Unmarshaler.
func (d *failureDomains) UnmarshalJSON(raw []byte) error {
	if !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		return json.Unmarshal(raw, (*[]FailureDomain)(d))
	}
	var named map[string]FailureDomain
	if err := json.Unmarshal(raw, &named); err != nil {
		return err
	}
	*d = nil
	for _, name := range slices.Sorted(maps.Keys(named)) {
		domain := named[name]
		domain.Name = name
		*d = append(*d, domain)
	}
	return nil
}
