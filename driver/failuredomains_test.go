package driver_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

func TestWithField(t *testing.T) {
	for name, tc := range map[string]struct {
		given, want string
		code        codes.Code
	}{
		"added":            {given: `{"size":"small"}`, want: `{"size":"small","zone":"a"}`},
		"replaced":         {given: `{"zone":{"no":"text"}}`, want: `{"zone":"a"}`},
		"numbers are kept": {given: `{"big":12345678901234567890,"x":1.50}`, want: `{"big":12345678901234567890,"x":1.50,"zone":"a"}`},
		"no specification": {given: "", want: `{"zone":"a"}`},
		"not an object":    {given: `["a"]`, code: codes.InvalidArgument},
		"null":             {given: `null`, code: codes.InvalidArgument},
		"not JSON":         {given: `{"a":`, code: codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := driver.WithField(runtime.RawExtension{Raw: []byte(tc.given)}, "zone", "a")
			if status.Code(err) != tc.code || string(got.Raw) != tc.want {
				t.Errorf("%s, %v; want %s, %v", got.Raw, err, tc.want, tc.code)
			}
		})
	}
}
