package machinedeployment

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// sameTemplate tells whether two templates make the same Machines. What can be changed
// on Machines that exist (node template, timeouts) does not count, nor do the set's own
// label and the kind of the class. The sets of a fleet that MCM has made are recognised
// by this: with another rule, the fleet would be rolled.
func sameTemplate(a, b *v1alpha1.MachineTemplateSpec) bool {
	return equality.Semantic.DeepEqual(essence(a), essence(b))
}

func essence(template *v1alpha1.MachineTemplateSpec) *v1alpha1.MachineTemplateSpec {
	reduced := template.DeepCopy()
	delete(reduced.Labels, v1alpha1.DefaultMachineDeploymentUniqueLabelKey)
	reduced.Spec.NodeTemplateSpec = v1alpha1.NodeTemplateSpec{}
	reduced.Spec.MachineConfiguration = nil
	reduced.Spec.Class.Kind = ""
	return reduced
}

// templateHash is a number that differs between templates. It only has to be stable for
// a set that exists: the set of a template is found by comparison.
func templateHash(template *v1alpha1.MachineTemplateSpec, collisions int32) (string, error) {
	encoded, err := json.Marshal(essence(template))
	if err != nil {
		return "", fmt.Errorf("encoding the template: %w", err)
	}
	hash := fnv.New32a()
	_, _ = hash.Write(encoded) // a hash never fails
	if collisions > 0 {
		_, _ = hash.Write(strconv.AppendInt(nil, int64(collisions), 10))
	}
	return strconv.FormatUint(uint64(hash.Sum32()), 10), nil
}

// setName is the name of the set with that hash, in MCM's form.
func setName(deployment, hash string) string {
	const length = 5
	safe := rand.SafeEncodeString(hash)
	return deployment + "-" + safe[:min(length, len(safe))]
}
