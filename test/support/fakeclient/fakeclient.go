// Package fakeclient creates fake clients. It shares what all of them need, since creating that takes longer than
// a whole test of a reconcile pass.
package fakeclient

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// NewBuilder returns a builder of a fake client for the kinds of a scheme.
func NewBuilder(kinds *runtime.Scheme) *fake.ClientBuilder {
	return fake.NewClientBuilder().WithScheme(kinds).WithTypeConverters(converters()...)
}

// converters are type converters that every fake client would otherwise create itself, from a new scheme of all
// Kubernetes kinds.
var converters = sync.OnceValue(func() []managedfields.TypeConverter {
	return []managedfields.TypeConverter{
		applyconfigurations.NewTypeConverter(clientgoscheme.Scheme), managedfields.NewDeducedTypeConverter(),
	}
})
