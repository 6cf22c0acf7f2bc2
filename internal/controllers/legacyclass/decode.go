package legacyclass

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"

	"github.com/millwright-dev/millwright/api/machine/legacy"
)

// decode returns an object as a pointer to the Go type of its kind. It rejects unknown fields and values of other
// types, since they would be lost in the migration.
func decode(object *unstructured.Unstructured) (any, error) {
	typed := legacy.New(object.GetKind())
	if typed == nil {
		return nil, fmt.Errorf("unknown kind %s", object.GetKind())
	}
	raw, err := json.Marshal(object.Object)
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	unknown, err := kjson.UnmarshalStrict(raw, typed)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	return typed, errors.Join(unknown...)
}
