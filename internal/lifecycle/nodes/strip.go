package nodes

import corev1 "k8s.io/api/core/v1"

// Strip is a cache transform for Nodes that removes, in place, lists in the status that no controller reads: the images,
// which are most of a node, and others. Objects of other kinds are returned unchanged. Nodes without these lists are not
// written to, because caches transform objects twice, and the second time the Node may be in use.
//
// A stripped Node must not be used for an update, which would remove the lists from the API server. Writer patches.
func Strip(object any) any {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object
	}
	status := &node.Status
	if status.Images != nil {
		status.Images = nil
	}
	if status.VolumesInUse != nil {
		status.VolumesInUse = nil
	}
	if status.RuntimeHandlers != nil {
		status.RuntimeHandlers = nil
	}
	return node
}
