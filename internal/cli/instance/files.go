package instance

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// inputs are what the files say.
type inputs struct {
	// class to use; nil if old has to be migrated first.
	class *v1alpha1.MachineClass
	// old is a pointer to an object of the package legacy, of the kind oldKind; nil if class is set.
	old     any
	oldKind string
	secret  *corev1.Secret
}

// kindOf returns the kind for a value of --class-kind, which may be short, as in "AWS".
func kindOf(text string) (string, error) {
	for _, kind := range append(legacy.Kinds(), v1alpha1.MachineClassKind) {
		if strings.EqualFold(text, kind) || strings.EqualFold(text+v1alpha1.MachineClassKind, kind) {
			return kind, nil
		}
	}
	return "", fmt.Errorf("--class-kind: %q is none of %s, %s", text, v1alpha1.MachineClassKind, strings.Join(legacy.Kinds(), ", "))
}

// readInputs reads the files. An empty kind is that of the class's file.
func readInputs(classFile, kind string, secretFiles []string) (inputs, error) {
	raw, found, err := document(classFile, func(found string) bool {
		return kind == "" && (found == v1alpha1.MachineClassKind || slices.Contains(legacy.Kinds(), found)) || kind != "" && found == kind
	})
	if err != nil {
		return inputs{}, err
	}
	in := inputs{}
	var into any
	if found == v1alpha1.MachineClassKind {
		in.class = &v1alpha1.MachineClass{}
		into = in.class
	} else {
		in.old, in.oldKind = legacy.New(found), found
		into = in.old
	}
	if err := yaml.UnmarshalStrict(raw, into); err != nil {
		return inputs{}, fmt.Errorf("%s: %s: %w", classFile, found, err)
	}
	in.secret, err = readSecrets(secretFiles)
	return in, err
}

// readSecrets merges the data of Secrets, of which the later count.
func readSecrets(files []string) (*corev1.Secret, error) {
	merged := &corev1.Secret{Data: map[string][]byte{}}
	for _, file := range files {
		raw, _, err := document(file, func(kind string) bool { return kind == "Secret" })
		if err != nil {
			return nil, err
		}
		secret := &corev1.Secret{}
		if err := yaml.UnmarshalStrict(raw, secret); err != nil {
			// The error may quote a value.
			return nil, fmt.Errorf("%s: the Secret is not valid: its data must be base64, or stringData", file)
		}
		maps.Copy(merged.Data, secret.Data)
		for key, value := range secret.StringData {
			merged.Data[key] = []byte(value)
		}
	}
	return merged, nil
}

// document returns the only document of a YAML or JSON file with a kind that is wanted.
func document(file string, wanted func(kind string) bool) (raw []byte, kind string, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, "", err
	}
	var others []string
	for _, part := range strings.Split("\n"+string(content), "\n---") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(part), &meta); err != nil {
			return nil, "", fmt.Errorf("%s is not YAML", file)
		}
		switch {
		case meta.Kind == "":
		case !wanted(meta.Kind):
			others = append(others, meta.Kind)
		case raw != nil:
			return nil, "", fmt.Errorf("%s has several objects to choose from: %s and %s", file, kind, meta.Kind)
		default:
			raw, kind = []byte(part), meta.Kind
		}
	}
	if raw == nil {
		return nil, "", fmt.Errorf("%s has no object of the kind that is wanted, only %s", file, orNone(others))
	}
	if _, err := utilyaml.ToJSON(raw); err != nil {
		return nil, "", fmt.Errorf("%s is not YAML", file)
	}
	return raw, kind, nil
}

func orNone(kinds []string) string {
	if len(kinds) == 0 {
		return "none at all"
	}
	return strings.Join(kinds, ", ")
}

// migrate makes a MachineClass of an object of an older kind, as the manager would.
func (in *inputs) migrate(ctx context.Context, d driver.Driver) error {
	if in.class != nil {
		return nil
	}
	migrator, ok := d.(driver.ClassMigrator)
	if !ok {
		return fmt.Errorf("the driver cannot make a MachineClass of the %s", in.oldKind)
	}
	object := in.old.(metav1.Object)
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: object.GetName()}}
	_, err := migrator.GenerateMachineClassForMigration(ctx, &driver.GenerateMachineClassForMigrationRequest{
		ProviderSpecificMachineClass: in.old, MachineClass: class,
		ClassSpec: &v1alpha1.ClassSpec{APIGroup: v1alpha1.GroupName, Kind: in.oldKind, Name: object.GetName()},
	})
	if err != nil {
		return fmt.Errorf("making a MachineClass of the %s: %w", in.oldKind, err)
	}
	in.class = class
	return nil
}

// check validates what a creation needs.
func (in *inputs) check() error {
	if errs := validation.MachineClass(in.class); len(errs) > 0 {
		return fmt.Errorf("the MachineClass is not valid: %w", errs.ToAggregate())
	}
	if _, ok := in.secret.Data[bootstrap.UserDataKey]; !ok {
		return errors.New("no Secret has the key " + bootstrap.UserDataKey)
	}
	return nil
}
