package revision

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Hash returns a number that differs between templates, and between collision counts of the same
// template. It only names a new set: the set of a template is found by comparison.
func Hash(template *v1alpha1.MachineTemplateSpec, collisions int32) string {
	encoded, _ := json.Marshal(Essence(template)) // plain fields: it cannot fail
	hash := fnv.New32a()
	_, _ = hash.Write(encoded) // a hash never fails
	if collisions > 0 {
		_, _ = hash.Write(strconv.AppendInt(nil, int64(collisions), 10))
	}
	return strconv.FormatUint(uint64(hash.Sum32()), 10)
}

// SetName returns the name of a deployment's set with that hash, in MCM's form.
func SetName(deployment, hash string) string {
	const length = 5
	safe := rand.SafeEncodeString(hash)
	return deployment + "-" + safe[:min(length, len(safe))]
}

// CreatedFor reports whether a set was created for a deployment of that name, whoever owns it now.
func CreatedFor(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) bool {
	hash := set.Spec.Template.Labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey]
	return hash != "" && set.Name == SetName(deployment.Name, hash)
}
