package v1alpha1

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/json"
)

// quantityPattern is the pattern of quantities in Millwright's CRDs, which hack/quantities.sh writes. It is
// stricter than controller-gen's pattern, which MCM's CRDs have: that one accepts "1e1.5", which Go cannot
// parse, and "1e-2147483647", which Go needs hours to parse.
const quantityPattern = `^(\+|-)?(([0-9]{1,30}(\.[0-9]{0,30})?)|(\.[0-9]{1,30}))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]{1,2}))?$`

var readable = regexp.MustCompile(quantityPattern)

// UnmarshalJSON ignores quantities that Millwright's CRDs reject. Under MCM's CRDs, one such quantity would
// otherwise prevent a client from reading any class, since a list is decoded as a whole.
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

// quantities is a list of quantities without those that cannot be parsed.
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

// text is a quantity as it is written, a string or a number. Null is zero, as for any quantity.
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
