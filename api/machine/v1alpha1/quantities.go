package v1alpha1

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/json"
)

// quantityPattern is the pattern of quantities in the CRDs of Millwright, which hack/quantities.sh writes. It is stricter than that of controller-gen,
// which is in MCM's: that one takes "1e1.5", which Go cannot parse, and "1e-2147483647", at which Go computes for hours.
const quantityPattern = `^(\+|-)?(([0-9]{1,30}(\.[0-9]{0,30})?)|(\.[0-9]{1,30}))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]{1,2}))?$`

var readable = regexp.MustCompile(quantityPattern)

// UnmarshalJSON leaves out quantities that the CRDs of Millwright refuse, as if they were not there. Under MCM's CRDs one
// of them would otherwise keep a client from reading any class, since a list is read as a whole.
func (t *NodeTemplate) UnmarshalJSON(raw []byte) error {
	type plain NodeTemplate // without this method
	read := struct {
		plain
		Capacity        quantities `json:"capacity"`
		VirtualCapacity quantities `json:"virtualCapacity"`
	}{plain: plain(*t)}
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	*t = NodeTemplate(read.plain)
	t.Capacity, t.VirtualCapacity = corev1.ResourceList(read.Capacity), corev1.ResourceList(read.VirtualCapacity)
	return nil
}

// quantities are those of a list that can be read.
type quantities corev1.ResourceList

// UnmarshalJSON implements json.Unmarshaler.
func (q *quantities) UnmarshalJSON(raw []byte) error {
	var texts map[corev1.ResourceName]text
	if err := json.Unmarshal(raw, &texts); err != nil || texts == nil {
		return err
	}
	*q = quantities{}
	for name, text := range texts {
		if !readable.MatchString(string(text)) {
			continue
		}
		quantity, err := resource.ParseQuantity(string(text))
		if err != nil {
			return err
		}
		(*q)[name] = quantity
	}
	return nil
}

// text is a quantity as it is written: as a string, or as a number. Null is zero, as for any quantity.
type text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '"' {
		var unquoted string
		err := json.Unmarshal(raw, &unquoted)
		*t = text(unquoted)
		return err
	}
	if *t = text(raw); *t == "null" {
		*t = "0"
	}
	return nil
}
