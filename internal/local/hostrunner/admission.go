package hostrunner

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// admit returns what of the Pod cannot be run here, nil if all can. Requests, limits
// and security contexts are not enforced, and refused by nobody.
func admit(pod *corev1.Pod) error {
	spec := &pod.Spec
	switch {
	case len(spec.Containers) != 1 || len(spec.InitContainers) != 0 || len(spec.EphemeralContainers) != 0:
		return errors.New("a host runs Pods of one container only")
	case spec.RestartPolicy != corev1.RestartPolicyNever:
		return fmt.Errorf("restartPolicy must be %s", corev1.RestartPolicyNever)
	case spec.ActiveDeadlineSeconds != nil:
		return errors.New("activeDeadlineSeconds is not supported")
	}
	container := &spec.Containers[0]
	for _, check := range []func(*corev1.Container) error{admitContainer, admitEnv} {
		if err := check(container); err != nil {
			return fmt.Errorf("container %s: %w", container.Name, err)
		}
	}
	for i := range spec.Volumes {
		if err := admitVolume(&spec.Volumes[i]); err != nil {
			return fmt.Errorf("volume %s: %w", spec.Volumes[i].Name, err)
		}
	}
	return admitMounts(container)
}

func admitContainer(c *corev1.Container) error {
	switch {
	case !slices.Equal(c.Command, vmpb.Command()) || len(c.Args) != 0:
		return fmt.Errorf("a host runs the command %q only", strings.Join(vmpb.Command(), " "))
	case c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil || c.Lifecycle != nil:
		return errors.New("probes and hooks are not supported")
	case c.WorkingDir != "":
		return errors.New("workingDir is not supported")
	case len(c.VolumeDevices) != 0:
		return errors.New("block volumes are not supported")
	case c.TerminationMessagePath != vmpb.TerminationMessagePath:
		return fmt.Errorf("terminationMessagePath must be %s", vmpb.TerminationMessagePath)
	}
	return nil
}

func admitEnv(c *corev1.Container) error {
	if len(c.EnvFrom) != 0 {
		return errors.New("envFrom is not supported")
	}
	for _, variable := range c.Env {
		if variable.ValueFrom == nil {
			continue
		}
		if variable.ValueFrom.FieldRef == nil {
			return fmt.Errorf("variable %s: only fieldRef is supported", variable.Name)
		}
		if _, err := fieldOf(&corev1.Pod{}, variable.ValueFrom.FieldRef.FieldPath); err != nil {
			return fmt.Errorf("variable %s: %w", variable.Name, err)
		}
	}
	return nil
}

func admitVolume(volume *corev1.Volume) error {
	source := &volume.VolumeSource
	switch {
	case source.EmptyDir != nil, source.PersistentVolumeClaim != nil:
		return nil
	case source.Secret != nil:
		for _, item := range source.Secret.Items {
			if !filepath.IsLocal(item.Path) {
				return fmt.Errorf("path %q leads out of the volume", item.Path)
			}
		}
		return nil
	case source.Projected != nil:
		for _, projection := range source.Projected.Sources {
			if projection.ServiceAccountToken == nil {
				return errors.New("only service account tokens can be projected")
			}
			if !filepath.IsLocal(projection.ServiceAccountToken.Path) {
				return fmt.Errorf("path %q leads out of the volume", projection.ServiceAccountToken.Path)
			}
		}
		return nil
	}
	return errors.New("this kind of volume is not supported")
}

// admitMounts demands that mount paths can be laid out as links: none lies in another.
func admitMounts(c *corev1.Container) error {
	taken := []string{vmpb.TerminationMessagePath}
	for _, mount := range c.VolumeMounts {
		switch {
		case mount.SubPath != "" || mount.SubPathExpr != "":
			return fmt.Errorf("mount %s: subPath is not supported", mount.MountPath)
		case !path.IsAbs(mount.MountPath) || path.Clean(mount.MountPath) == "/":
			return fmt.Errorf("mount path %q is not below the root", mount.MountPath)
		}
		for _, other := range taken {
			if within(mount.MountPath, other) || within(other, mount.MountPath) {
				return fmt.Errorf("mount paths %s and %s overlap", mount.MountPath, other)
			}
		}
		taken = append(taken, mount.MountPath)
	}
	return nil
}

// within reports whether a path is the other one or lies in it.
func within(inner, outer string) bool {
	inner, outer = path.Clean(inner), path.Clean(outer)
	return inner == outer || strings.HasPrefix(inner, strings.TrimSuffix(outer, "/")+"/")
}
