// Package budget decides whether an unhealthy Machine may be replaced now, according to the policy of its pool.
//
// A MachineDeployment has the policy in spec.replacement or in an annotation. Its sets have it in the
// annotation, where the machine controller reads it. The package is pure. Package replacement gathers the
// pools.
package budget

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Longest is the longest period over which replacements are counted.
const Longest = 24 * time.Hour

// longestText is the maximum length of a policy in an annotation, in bytes. A policy with eight budgets has
// several hundred.
const longestText = 8 << 10

// Given returns the policy in a deployment's field or else in its annotation. It returns nil if there is none,
// or if it is invalid.
func Given(deployment *v1alpha1.MachineDeployment) *v1alpha1.ReplacementPolicy {
	policy := deployment.Spec.Replacement
	switch {
	case policy == nil:
		return Of(deployment)
	case len(Check(nil, policy)) > 0:
		return nil
	}
	return policy
}

// Of returns the policy in the annotation of a set or deployment. It returns nil if there is none or it is
// invalid. The annotation is untrusted, so its length is limited.
func Of(object metav1.Object) *v1alpha1.ReplacementPolicy {
	policy, _ := read(object)
	return policy
}

// Wrong returns why the policy in a set's annotation is ignored. It returns an empty string if the policy
// applies or there is none.
func Wrong(object metav1.Object) string {
	if _, err := read(object); err != nil {
		return err.Error()
	}
	return ""
}

func read(object metav1.Object) (*v1alpha1.ReplacementPolicy, error) {
	text := object.GetAnnotations()[v1alpha1.AnnotationKeyReplacement]
	if text == "" {
		return nil, nil // the common case
	}
	policy, err := Parse(text)
	if err != nil {
		return nil, err
	}
	if errs := Check(nil, policy); len(errs) > 0 {
		return nil, errs[0] // one is enough; there may be one for each budget
	}
	return policy, nil
}

// Parse parses a policy in JSON. Unknown fields are errors, because they may be limits.
func Parse(text string) (*v1alpha1.ReplacementPolicy, error) {
	if len(text) > longestText {
		return nil, fmt.Errorf("cannot parse replacement policy: %d bytes, at most %d allowed", len(text), longestText)
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	policy := &v1alpha1.ReplacementPolicy{}
	if err := decoder.Decode(policy); err != nil {
		return nil, fmt.Errorf("cannot parse replacement policy: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("cannot parse replacement policy: unexpected data after the JSON object")
	}
	return policy, nil
}

// Assign writes the policy of a deployment to the annotation of a set, or removes the annotation if there is no
// policy. An invalid policy is copied unchanged; readers ignore it.
func Assign(set *v1alpha1.MachineSet, deployment *v1alpha1.MachineDeployment) {
	text := deployment.Annotations[v1alpha1.AnnotationKeyReplacement]
	if policy := deployment.Spec.Replacement; policy != nil {
		made, _ := json.Marshal(policy) // cannot fail: decoded from JSON
		text = string(made)
	}
	if text == "" {
		delete(set.Annotations, v1alpha1.AnnotationKeyReplacement)
		return
	}
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyReplacement, text)
}
