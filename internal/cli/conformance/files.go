package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/conformance"
)

// files are manifests.
type files struct {
	class, changed, other string
	secrets               []string
	badSecret             string
}

// provider reads the files. The classes must be of the driver.
func (f files) provider(driver string) (provider conformance.Provider, err error) {
	if provider.Class, err = readClass("class", f.class, driver); err != nil {
		return provider, err
	}
	if provider.Class == nil {
		return provider, errors.New("--class: required: a file with the MachineClass of the machines")
	}
	if provider.Variants.Changed, err = readClass("changed-class", f.changed, driver); err != nil {
		return provider, err
	}
	if provider.Variants.OtherCluster, err = readClass("other-cluster-class", f.other, driver); err != nil {
		return provider, err
	}
	if f.badSecret != "" {
		if provider.Variants.BadSecret, err = readSecrets("bad-secret", f.badSecret); err != nil {
			return provider, err
		}
	}
	if len(f.secrets) == 0 {
		return provider, errors.New("--secret: required: a file with the Secret of the class, which has credentials and user data")
	}
	provider.Secret, err = readSecrets("secret", f.secrets...)
	return provider, err
}

// readClass reads a class. It is nil if no file is named.
func readClass(flag, path, driver string) (*v1alpha1.MachineClass, error) {
	if path == "" {
		return nil, nil
	}
	class := &v1alpha1.MachineClass{}
	if err := readOne(path, "machine.sapcloud.io/v1alpha1", "MachineClass", class); err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	if class.Provider != "" && !strings.EqualFold(class.Provider, driver) {
		return nil, fmt.Errorf("--%s: %s: the provider of class %s is %q, not %q", flag, path, class.Name, class.Provider, driver)
	}
	return class, nil
}

// readSecrets reads and merges Secrets.
func readSecrets(flag string, paths ...string) (*corev1.Secret, error) {
	merged := &corev1.Secret{Data: map[string][]byte{}}
	for _, path := range paths {
		secret := &corev1.Secret{}
		if err := readOne(path, "v1", "Secret", secret); err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		maps.Copy(merged.Data, secret.Data)
		for key, value := range secret.StringData {
			merged.Data[key] = []byte(value)
		}
	}
	return merged, nil
}

// readOne decodes the only object of a kind in a file, which may have others.
func readOne(path, apiVersion, kind string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	found := 0
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		of := metav1.TypeMeta{}
		if err := yaml.Unmarshal(document, &of); err != nil {
			return fmt.Errorf("%s: is not YAML", path) // the error may quote a Secret
		}
		if of.APIVersion != apiVersion || of.Kind != kind {
			continue
		}
		if found++; yaml.UnmarshalStrict(document, into) != nil {
			return fmt.Errorf("%s: is not a valid %s: %w", path, kind, problem(document, kind, into))
		}
	}
	if found != 1 {
		return fmt.Errorf("%s: has %d objects of kind %s (%s), want one", path, found, kind, apiVersion)
	}
	return nil
}

var errSecret = errors.New("a field is not known, or has a value of another type")

// problem says what is wrong with a document, without quoting Secrets.
func problem(document []byte, kind string, into any) error {
	if kind == "Secret" {
		return errSecret
	}
	return yaml.UnmarshalStrict(document, into)
}
