package vm

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/drivers/vm/internal/fields"
)

const (
	clusterTag = "kubernetes.io/cluster/"
	roleTag    = "kubernetes.io/role/"
	// longestTag is the limit of a key and of a value, the same as at large providers.
	longestTag = 256
)

// readTags reads the tags. Two of them name the cluster and the role of the VMs.
func (s *spec) readTags(o *fields.Object) {
	s.tags = o.Texts("tags")
	if o.HasProblem("tags") {
		return // they are no tags at all
	}
	for _, key := range slices.Sorted(maps.Keys(s.tags)) {
		if why := tagProblem(key, s.tags[key]); why != "" {
			o.Problem(fmt.Sprintf("tags[%q]", key), "%s", why)
		}
	}
	s.cluster = s.namedByTag(o, clusterTag)
	s.role = s.namedByTag(o, roleTag)
}

func tagProblem(key, value string) string {
	switch {
	case key == "" || len(key) > longestTag || len(value) > longestTag:
		return fmt.Sprintf("the key must have 1 to %d bytes, and the value at most as many", longestTag)
	case strings.ContainsFunc(key, unicode.IsControl) || strings.ContainsFunc(value, unicode.IsControl):
		return "must not contain control characters"
	case reserved(key):
		return "the driver and the VM controller have keys like this for themselves"
	}
	return ""
}

func reserved(key string) bool {
	return strings.HasPrefix(key, prefix) || strings.HasPrefix(key, vmv1alpha1.GroupName+"/")
}

// namedByTag returns the end of the one key that begins with start.
func (s *spec) namedByTag(o *fields.Object, start string) string {
	var names []string
	for _, key := range slices.Sorted(maps.Keys(s.tags)) {
		if name, ok := strings.CutPrefix(key, start); ok {
			names = append(names, name)
		}
	}
	switch {
	case len(names) != 1:
		o.Problem("tags", "needs exactly one key %s<NAME>, has %d", start, len(names))
	case names[0] == "" || len(validation.IsValidLabelValue(names[0])) > 0:
		o.Problem(fmt.Sprintf("tags[%q]", start+names[0]), "what follows %s must be valid as a label's value, and not empty", start)
	default:
		return names[0]
	}
	return ""
}

// labels returns the labels for the cluster, the role, and the tags that can be labels.
func (s *spec) labels() map[string]string {
	labels := map[string]string{LabelCluster: s.cluster, LabelRole: s.role}
	for key, value := range s.tags {
		if len(validation.IsQualifiedName(key)) == 0 && len(validation.IsValidLabelValue(value)) == 0 {
			labels[key] = value
		}
	}
	return labels
}

// tagsAnnotation returns the value of AnnotationTags.
func (s *spec) tagsAnnotation() string {
	text, err := json.Marshal(s.tags)
	if err != nil {
		panic(err) // texts can always be written
	}
	return string(text)
}
