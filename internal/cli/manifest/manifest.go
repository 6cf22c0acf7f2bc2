// Package manifest reads classes and Secrets from files.
package manifest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

const secretKind = "Secret"

// apiVersion returns the API version of a kind. A document may omit it.
func apiVersion(kind string) string {
	if kind == secretKind {
		return corev1.SchemeGroupVersion.String()
	}
	return v1alpha1.SchemeGroupVersion.String()
}

// ClassKinds returns the kinds of classes: MachineClass and the legacy ones.
func ClassKinds() []string { return append([]string{v1alpha1.MachineClassKind}, legacy.Kinds()...) }

// KindOf returns the kind of class for a text, which may be a short form such as "AWS".
func KindOf(text string) (string, error) {
	for _, kind := range ClassKinds() {
		if strings.EqualFold(text, kind) || strings.EqualFold(text+v1alpha1.MachineClassKind, kind) {
			return kind, nil
		}
	}
	return "", fmt.Errorf("unknown kind %q; expected one of %s", text, strings.Join(ClassKinds(), ", "))
}

// ReadClass reads the only class of a file, which may also have objects of other kinds. An empty kind means any
// kind of class.
func ReadClass(path, kind string) (Class, error) {
	kinds := ClassKinds()
	if kind != "" {
		kinds = []string{kind}
	}
	text, found, err := only(path, kinds)
	if err != nil {
		return Class{}, err
	}
	class := Class{}
	var into any
	if found == v1alpha1.MachineClassKind {
		class.current = &v1alpha1.MachineClass{}
		into = class.current
	} else {
		class.old, class.oldKind = legacy.New(found), found
		into = class.old
	}
	err = yaml.UnmarshalStrict(text, into)
	if err == nil && class.current != nil {
		err = nothingLeftOut(text, class.current)
	}
	if err != nil {
		return Class{}, fmt.Errorf("%s: not a valid %s: %w", path, found, err)
	}
	return class, nil
}

// nothingLeftOut returns an error if a node template has fields or quantities that decoding ignores: unknown
// fields, and quantities that cannot be parsed.
func nothingLeftOut(text []byte, read *v1alpha1.MachineClass) error {
	written := struct {
		v1alpha1.MachineClass `json:",inline"`
		NodeTemplate          *nodeTemplate `json:"nodeTemplate"`
	}{}
	if err := yaml.UnmarshalStrict(text, &written); err != nil || written.NodeTemplate == nil {
		return err
	}
	for field, quantities := range map[string]struct {
		written map[string]any
		read    corev1.ResourceList
	}{
		"capacity":        {written.NodeTemplate.Capacity, read.NodeTemplate.Capacity},
		"virtualCapacity": {written.NodeTemplate.VirtualCapacity, read.NodeTemplate.VirtualCapacity},
	} {
		for name := range quantities.written {
			if _, ok := quantities.read[corev1.ResourceName(name)]; !ok {
				return fmt.Errorf("nodeTemplate.%s[%s]: %v is not a valid quantity; expected a value such as 500m or 4Gi", field, name, quantities.written[name])
			}
		}
	}
	return nil
}

// nodeTemplate is v1alpha1.NodeTemplate with unparsed quantities.
type nodeTemplate struct {
	Capacity        map[string]any `json:"capacity"`
	VirtualCapacity map[string]any `json:"virtualCapacity"`
	InstanceType    string         `json:"instanceType"`
	Region          string         `json:"region"`
	Zone            string         `json:"zone"`
	Architecture    *string        `json:"architecture"`
}

// ReadSecrets reads a Secret from each file and merges their data. Later files take precedence. Errors do not
// quote the files.
func ReadSecrets(paths ...string) (*corev1.Secret, error) {
	merged := &corev1.Secret{Data: map[string][]byte{}}
	for _, path := range paths {
		text, _, err := only(path, []string{secretKind})
		if err != nil {
			return nil, err
		}
		secret := &corev1.Secret{}
		if yaml.UnmarshalStrict(text, secret) != nil {
			return nil, fmt.Errorf("%s: not a valid Secret: a field is unknown, or a value in data is not base64; put plain text into stringData", path)
		}
		maps.Copy(merged.Data, secret.Data)
		for key, value := range secret.StringData {
			merged.Data[key] = []byte(value)
		}
	}
	return merged, nil
}

// errNotYAML does not quote the text, because it may contain a Secret.
var errNotYAML = errors.New("not valid YAML")

// Objects returns the YAML documents of a text. Instead of a document of kind List, which "kubectl get -o yaml" writes,
// it returns the items of the List as JSON. The error does not quote the text.
func Objects(text io.Reader) ([][]byte, error) {
	var objects [][]byte
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(text)); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		of := metav1.TypeMeta{}
		if err != nil || yaml.Unmarshal(document, &of) != nil {
			return nil, errNotYAML
		}
		if of.Kind != "List" {
			objects = append(objects, document)
			continue
		}
		list := struct {
			Items []json.RawMessage `json:"items"`
		}{}
		if yaml.Unmarshal(document, &list) != nil {
			return nil, errNotYAML
		}
		for _, item := range list.Items {
			objects = append(objects, item)
		}
	}
}

// only returns the only object of a file that has one of the kinds. The error does not quote the file.
func only(path string, kinds []string) (text []byte, kind string, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, "", err
	}
	objects, err := Objects(bytes.NewReader(content))
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	var others []string
	count := 0
	for _, object := range objects {
		of := metav1.TypeMeta{}
		if yaml.Unmarshal(object, &of) != nil {
			return nil, "", fmt.Errorf("%s: %w", path, errNotYAML)
		}
		switch {
		case slices.Contains(kinds, of.Kind) && (of.APIVersion == "" || of.APIVersion == apiVersion(of.Kind)):
			text, kind = object, of.Kind
			count++
		case of.Kind != "":
			others = append(others, strings.TrimPrefix(of.APIVersion+" ", " ")+of.Kind)
		}
	}
	return text, kind, wrongCount(path, count, kinds, others)
}

// wrongCount returns the error for a file that has no object of the kinds, or several.
func wrongCount(path string, count int, kinds, others []string) error {
	kind := kinds[0]
	if len(kinds) > 1 {
		kind = "class"
	}
	switch {
	case count == 1:
		return nil
	case count > 1:
		return fmt.Errorf("%s: has %d objects, expected one %s", path, count, kind)
	case len(others) == 0:
		return fmt.Errorf("%s: has no object, expected one %s (%s)", path, kind, apiVersion(kinds[0]))
	default:
		return fmt.Errorf("%s: has no %s (%s), only %s", path, kind, apiVersion(kinds[0]), strings.Join(others, ", "))
	}
}
