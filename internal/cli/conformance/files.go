package conformance

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/internal/cli/manifest"
)

// files are the paths of manifests.
type files struct {
	class, changed, other string
	secrets               []string
	badSecret             string
}

// contents is the content of the files.
type contents struct {
	class, changed, other manifest.Class
	secret, badSecret     *corev1.Secret
}

// read reads the files.
func (f files) read() (c contents, err error) {
	if f.class == "" {
		return c, errors.New("--class: required; a file with the MachineClass of the machines")
	}
	if len(f.secrets) == 0 {
		return c, errors.New("--secret: required; a file with the Secret of the class, which has credentials and user data")
	}
	for _, file := range []struct {
		flag, path string
		into       *manifest.Class
	}{{"class", f.class, &c.class}, {"changed-class", f.changed, &c.changed}, {"other-cluster-class", f.other, &c.other}} {
		if file.path == "" {
			continue
		}
		if *file.into, err = manifest.ReadClass(file.path, ""); err != nil {
			return c, fmt.Errorf("--%s: %w", file.flag, err)
		}
	}
	if c.secret, err = manifest.ReadSecrets(f.secrets...); err != nil {
		return c, fmt.Errorf("--secret: %w", err)
	}
	if f.badSecret != "" {
		if c.badSecret, err = manifest.ReadSecrets(f.badSecret); err != nil {
			return c, fmt.Errorf("--bad-secret: %w", err)
		}
	}
	return c, nil
}

// areFor returns an error if a class names another driver.
func (c contents) areFor(driver string) error {
	for flag, class := range map[string]manifest.Class{"class": c.class, "changed-class": c.changed, "other-cluster-class": c.other} {
		if err := class.IsFor(driver); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	return nil
}

// provider describes what to check.
func (c contents) provider(ctx context.Context, d driver.Driver) (provider conformance.Provider, err error) {
	provider.Driver, provider.Secret, provider.Variants.BadSecret = d, c.secret, c.badSecret
	if provider.Class, err = c.class.MachineClass(ctx, d); err != nil {
		return provider, fmt.Errorf("--class: %w", err)
	}
	if provider.Variants.Changed, err = c.changed.MachineClass(ctx, d); err != nil {
		return provider, fmt.Errorf("--changed-class: %w", err)
	}
	if provider.Variants.OtherCluster, err = c.other.MachineClass(ctx, d); err != nil {
		return provider, fmt.Errorf("--other-cluster-class: %w", err)
	}
	return provider, nil
}
