// Package machine defines the API group of machines, at MCM's import path.
package machine

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// GroupName is the API group of Machines.
const GroupName = v1alpha1.GroupName

// Kind qualifies a kind of the group.
func Kind(kind string) schema.GroupKind { return v1alpha1.Kind(kind) }

// Resource qualifies a resource of the group.
func Resource(resource string) schema.GroupResource { return v1alpha1.Resource(resource) }
