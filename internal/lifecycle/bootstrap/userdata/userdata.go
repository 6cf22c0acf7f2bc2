// Package userdata fills the placeholders of user data that the controllers of machines know. It imports no Kubernetes
// packages, so that it can be built for fuzzing within seconds.
package userdata

import (
	"fmt"

	"github.com/millwright-dev/millwright/internal/placeholder"
)

// Render fills the placeholders of user data, also in encoded parts; see placeholder.Fill. An empty token leaves its
// placeholder unchanged.
func Render(userData []byte, machineName, token string) ([]byte, error) {
	values := []placeholder.Value{{Placeholder: placeholder.MachineName, Value: machineName}}
	if token != "" {
		values = append(values, placeholder.Value{Placeholder: placeholder.Token, Value: token})
	}
	filled, err := placeholder.Fill(userData, values...)
	if err != nil {
		return nil, fmt.Errorf("filling the placeholders of the user data: %w", err)
	}
	return filled, nil
}
