package v1alpha1_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestMCMObjectsSurviveDecodingAndEncoding checks that no field of MCM's objects is lost.
func TestMCMObjectsSurviveDecodingAndEncoding(t *testing.T) {
	decoder := strictDecoder(t)
	kinds := map[string]int{}
	for _, recorded := range readFixtures(t) {
		obj, gvk, err := decoder.Decode(recorded.raw, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", recorded.file, err)
		}
		kinds[gvk.Kind]++
		want, got := decode(t, recorded.raw), decode(t, encode(t, obj))
		if diff := cmp.Diff(stored(want), stored(got)); diff != "" {
			t.Errorf("%s: %s changed (-recorded +encoded):\n%s", recorded.file, gvk.Kind, diff)
		}
	}
	want := map[string]int{"Machine": 147, "MachineSet": 80, "MachineDeployment": 61, "MachineClass": 74}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("objects in testdata/mcm (-want +got):\n%s", diff)
	}
}

// The test above relies on this: a field that the types lack must be reported.
func TestStrictDecoderRefusesUnknownFields(t *testing.T) {
	raw := `{"apiVersion":"machine.sapcloud.io/v1alpha1","kind":"Machine","spec":{"surprise":1}}`
	if _, _, err := strictDecoder(t).Decode([]byte(raw), nil, nil); !runtime.IsStrictDecodingError(err) {
		t.Errorf("got %v, want a strict decoding error", err)
	}
}

func strictDecoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// fixture is one recorded object of our API group.
type fixture struct {
	file string
	raw  json.RawMessage
}

func readFixtures(t *testing.T) []fixture {
	t.Helper()
	files, err := filepath.Glob("testdata/mcm/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	var fixtures []fixture
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(data, &list); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, item := range list.Items {
			if decode(t, item)["apiVersion"] == v1alpha1.SchemeGroupVersion.String() {
				fixtures = append(fixtures, fixture{file: file, raw: item})
			}
		}
	}
	return fixtures
}

func decode(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

func encode(t *testing.T, obj any) []byte {
	t.Helper()
	raw, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// stored reduces a JSON tree to its content: a field that is null or an object without fields is the same as an
// absent one.
func stored(tree any) any {
	switch node := tree.(type) {
	case map[string]any:
		kept := map[string]any{}
		for key, value := range node {
			if value = stored(value); value != nil {
				kept[key] = value
			}
		}
		if len(kept) == 0 {
			return nil
		}
		return kept
	case []any:
		kept := make([]any, len(node))
		for i, value := range node {
			kept[i] = stored(value)
		}
		return kept
	default:
		return tree
	}
}
