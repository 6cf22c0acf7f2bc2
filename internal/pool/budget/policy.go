// Package budget decides whether an unhealthy Machine may be replaced now, by the policy of its pool.
//
// A MachineDeployment has the policy in spec.replacement or in an annotation. Its sets have it in the
// annotation, where the Machines' controller finds it. All of it is pure; package replacement knows the pools.
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

// Longest is the longest time within which replacements are counted.
const Longest = 24 * time.Hour

// longestText bounds a policy in an annotation, in bytes. Eight budgets have some hundred.
const longestText = 8 << 10

// Given returns the policy of a deployment, by its field or by its annotation; nil if there is none, or if
// it cannot be read or followed.
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

// Of returns the policy in the annotation of a set or deployment; nil if there is none that can be read and
// followed. Anyone may have written it, so the cost of following it is bounded.
func Of(object metav1.Object) *v1alpha1.ReplacementPolicy {
	policy, _ := read(object)
	return policy
}

// Wrong returns why the policy in the annotation of a set counts for nothing; empty if it counts, or there is none.
func Wrong(object metav1.Object) string {
	if _, err := read(object); err != nil {
		return err.Error()
	}
	return ""
}

func read(object metav1.Object) (*v1alpha1.ReplacementPolicy, error) {
	text := object.GetAnnotations()[v1alpha1.AnnotationKeyReplacement]
	if text == "" {
		return nil, nil // nearly always
	}
	policy, err := Parse(text)
	if err != nil {
		return nil, err
	}
	if errs := Check(nil, policy); len(errs) > 0 {
		return nil, errs[0] // one says enough; there may be one for each budget
	}
	return policy, nil
}

// Parse reads a policy in JSON. A field that it does not know is an error: it may be a limit.
func Parse(text string) (*v1alpha1.ReplacementPolicy, error) {
	if len(text) > longestText {
		return nil, fmt.Errorf("reading a replacement policy: it has %d bytes, and may have %d", len(text), longestText)
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	policy := &v1alpha1.ReplacementPolicy{}
	if err := decoder.Decode(policy); err != nil {
		return nil, fmt.Errorf("reading a replacement policy: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("reading a replacement policy: there is more after it")
	}
	return policy, nil
}

// Assign writes the policy of a deployment into the annotation of a set. Without one, the set has none. One
// that cannot be read or followed is taken over as it is, and means none.
func Assign(set *v1alpha1.MachineSet, deployment *v1alpha1.MachineDeployment) {
	text := deployment.Annotations[v1alpha1.AnnotationKeyReplacement]
	if policy := deployment.Spec.Replacement; policy != nil {
		if made, err := json.Marshal(policy); err == nil {
			text = string(made)
		}
	}
	if text == "" {
		delete(set.Annotations, v1alpha1.AnnotationKeyReplacement)
		return
	}
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyReplacement, text)
}
