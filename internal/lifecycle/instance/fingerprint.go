package instance

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// fingerprint reports whether a request changed in anything that could make a failed
// call succeed. Our own writes of status and metadata do not change it.
type fingerprint struct {
	machine, class                     types.UID
	machineGeneration, classGeneration int64
	// force is the label by which a user urges a deletion on.
	force  string
	secret [sha256.Size]byte
}

// sameButSecret reports whether the two differ in nothing but the secret.
func (f fingerprint) sameButSecret(other fingerprint) bool {
	other.secret = f.secret
	return f == other
}

func fingerprintOf(req Request) fingerprint {
	return fingerprint{
		machine:           req.Machine.UID,
		machineGeneration: req.Machine.Generation,
		class:             req.Class.UID,
		classGeneration:   req.Class.Generation,
		force:             req.Machine.Labels[v1alpha1.LabelKeyForceDeletion],
		secret:            hashSecret(req.Secret),
	}
}

func hashSecret(secret *corev1.Secret) [sha256.Size]byte {
	hash := sha256.New()
	part := func(b []byte) {
		_ = binary.Write(hash, binary.BigEndian, uint64(len(b))) // a hash never fails
		hash.Write(b)
	}
	if secret != nil {
		for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
			part([]byte(key))
			part(secret.Data[key])
		}
	}
	return [sha256.Size]byte(hash.Sum(nil))
}
