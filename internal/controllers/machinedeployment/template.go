package machinedeployment

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"

	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
)

// templateHash is a number that differs between templates. It only has to be stable for
// a set that exists: the set of a template is found by comparison.
func templateHash(template *v1alpha1.MachineTemplateSpec, collisions int32) (string, error) {
	encoded, err := json.Marshal(revision.Essence(template))
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
