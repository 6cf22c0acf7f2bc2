package upstream

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ignored are fields that the API server sets, and times.
var ignored = []string{
	"uid", "resourceVersion", "managedFields", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds",
	"kubectl.kubernetes.io/last-applied-configuration", "namespace", "apiVersion", "kind", "nodeInfo", "daemonEndpoints",
	"lastUpdateTime", "lastHeartbeatTime", "lastTransitionTime", "message",
}

// flattenInto adds the nonempty fields of a value. List entries are identified by their type or key.
func flattenInto(flat map[string]string, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, field := range value {
			if !slices.Contains(ignored, key) {
				flattenInto(flat, path+"."+key, field)
			}
		}
	case []any:
		if !flattenEntries(flat, path, value) && len(value) > 0 {
			flat[path] = fmt.Sprint(value)
		}
	case nil:
	default:
		if text := fmt.Sprint(value); !slices.Contains([]string{"", "0", "false"}, text) {
			flat[path] = text
		}
	}
}

// flattenEntries reports whether the entries of a list can be identified.
func flattenEntries(flat map[string]string, path string, list []any) bool {
	for _, entry := range list {
		fields, _ := entry.(map[string]any)
		name, key := fields["type"], "type"
		if name == nil {
			name, key = fields["key"], "key"
		}
		if name == nil {
			return false
		}
		for field, value := range fields {
			if field != key && !slices.Contains(ignored, field) {
				flattenInto(flat, fmt.Sprintf("%s[%v].%s", path, name, field), value)
			}
		}
	}
	return true
}

var (
	// valued are the fields whose values writes.txt contains, since they have few.
	valued = regexp.MustCompile(`(\.phase|lastOperation\.(description|state|type)|errorCode|conditions\[[^\]]*\]\.(status|reason))$`)

	machineName = regexp.MustCompile(`\b[a-z]+-[0-9a-f]{5}-[a-z0-9-]{5,}\b`)
	conditions  = regexp.MustCompile(`Node [cC]onditions: .*`)
	errorText   = regexp.MustCompile(`message = \[.*\]`)
	errorCode   = regexp.MustCompile(`code = \[.*?\]`)
	duration    = regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?(ms|µs|s)\b`)
)

// plain removes from a message what differs between two fleets.
func plain(text string) string {
	text = conditions.ReplaceAllString(text, "Node conditions: C")
	text = errorCode.ReplaceAllString(errorText.ReplaceAllString(text, "message = [M]"), "code = [K]")
	return duration.ReplaceAllString(machineName.ReplaceAllString(text, "#"), "T")
}

// difference describes the fields that differ, either of the status or all others.
func difference(before, after map[string]string, status bool) []string {
	ours := func(path string) bool { return strings.HasPrefix(path, ".status") == status }
	var fields []string
	for path, value := range after {
		if was, there := before[path]; ours(path) && (!there || was != value) {
			if valued.MatchString(path) {
				path += "=" + plain(value)
			}
			fields = append(fields, path)
		}
	}
	for path := range before {
		if _, there := after[path]; ours(path) && !there {
			fields = append(fields, path+" gone")
		}
	}
	return fields
}
