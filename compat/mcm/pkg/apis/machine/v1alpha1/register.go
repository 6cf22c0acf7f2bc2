// Package v1alpha1 contains the types of machine.sapcloud.io/v1alpha1 at MCM's import path. They are the types of
// Millwright's module api, so objects need no conversion.
package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

var (
	// SchemeGroupVersion is the group and version of this package's kinds.
	SchemeGroupVersion = v1alpha1.SchemeGroupVersion
	// SchemeBuilder collects the functions that AddToScheme calls.
	SchemeBuilder = runtime.NewSchemeBuilder(v1alpha1.AddToScheme)
	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Kind qualifies a kind of this group.
func Kind(kind string) schema.GroupKind { return v1alpha1.Kind(kind) }

// Resource qualifies a resource of this group.
func Resource(resource string) schema.GroupResource { return v1alpha1.Resource(resource) }
