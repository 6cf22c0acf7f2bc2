// Package scheme contains a scheme with the kinds of machine.sapcloud.io/v1alpha1, at MCM's import path.
package scheme

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

var (
	// Scheme contains the kinds of machine.sapcloud.io/v1alpha1.
	Scheme = runtime.NewScheme()
	// Codecs encode and decode the kinds of Scheme.
	Codecs = serializer.NewCodecFactory(Scheme)
	// ParameterCodec encodes and decodes the options of requests.
	ParameterCodec = runtime.NewParameterCodec(Scheme)

	localSchemeBuilder = runtime.NewSchemeBuilder(v1alpha1.AddToScheme)
	// AddToScheme adds the kinds to another scheme.
	AddToScheme = localSchemeBuilder.AddToScheme
)

func init() {
	metav1.AddToGroupVersion(Scheme, schema.GroupVersion{Version: "v1"})
	utilruntime.Must(AddToScheme(Scheme))
}
