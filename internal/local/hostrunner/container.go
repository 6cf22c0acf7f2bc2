package hostrunner

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/internal/confine"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// admit returns an error if the Pod needs something that a host does not support. Requests, limits and security
// contexts are ignored.
func admit(pod *corev1.Pod) error {
	spec := &pod.Spec
	switch {
	case len(spec.Containers) != 1 || len(spec.InitContainers) != 0 || len(spec.EphemeralContainers) != 0:
		return errors.New("only Pods with one container are supported")
	case spec.RestartPolicy != corev1.RestartPolicyNever:
		return fmt.Errorf("restartPolicy must be %s", corev1.RestartPolicyNever)
	case spec.ActiveDeadlineSeconds != nil:
		return errors.New("activeDeadlineSeconds is not supported")
	}
	container := &spec.Containers[0]
	if err := admitContainer(container); err != nil {
		return fmt.Errorf("container %s: %w", container.Name, err)
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
	case !slices.Equal(c.Command, vmpb.Command()) && !slices.Equal(c.Command, vmpb.DiskServerCommand()) || len(c.Args) != 0:
		return fmt.Errorf("only the commands %q and %q are supported", strings.Join(vmpb.Command(), " "), strings.Join(vmpb.DiskServerCommand(), " "))
	case c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil || c.Lifecycle != nil:
		return errors.New("probes and hooks are not supported")
	case c.WorkingDir != "":
		return errors.New("workingDir is not supported")
	case c.TerminationMessagePath != vmpb.TerminationMessagePath:
		return fmt.Errorf("terminationMessagePath must be %s", vmpb.TerminationMessagePath)
	}
	return admitEnv(c)
}

func admitEnv(c *corev1.Container) error {
	if len(c.EnvFrom) != 0 {
		return errors.New("envFrom is not supported")
	}
	for _, variable := range c.Env {
		if isTemporary(variable) {
			continue
		}
		if !ofHypervisors(variable.Name) {
			return fmt.Errorf("variable %s: not a variable of hypervisors", variable.Name)
		}
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

// temporary is the variable that names QEMU's directory for temporary files.
const temporary = "TMPDIR"

// isTemporary reports whether a variable sets that directory like VM controllers in clusters do.
func isTemporary(variable corev1.EnvVar) bool {
	return variable == corev1.EnvVar{Name: temporary, Value: vmpb.DirRun}
}

// foreign are variables that name files which a host gives to hypervisors in another way.
var foreign = []string{vmpb.EnvCertFile, vmpb.EnvKeyFile, vmpb.EnvAuthorityFile}

// ofHypervisors reports whether a Pod may set a variable for its process. All others are rejected: the process
// has no image of its own, so that PATH, LD_PRELOAD, SSL_CERT_FILE and many other variables of programs and
// libraries would lead it, and QEMU, to files of the host or of the Pod.
func ofHypervisors(name string) bool {
	switch {
	case name == "POD_IP":
		return true
	case slices.Contains(foreign, name):
		return false
	}
	return strings.HasPrefix(name, "METROPOLIS_VM_") || strings.HasPrefix(name, "MILLWRIGHT_VM_")
}

func admitVolume(volume *corev1.Volume) error {
	source := &volume.VolumeSource
	var paths []string
	switch {
	case !ofOneKind(source):
		return errors.New("unsupported type of volume, or several types")
	case source.EmptyDir != nil, source.PersistentVolumeClaim != nil:
	case source.Secret != nil:
		for _, item := range source.Secret.Items {
			paths = append(paths, item.Path)
		}
	case source.Projected != nil:
		for _, projection := range source.Projected.Sources {
			if projection.ServiceAccountToken == nil {
				return errors.New("only service account tokens can be projected")
			}
			paths = append(paths, projection.ServiceAccountToken.Path)
		}
	default:
		return errors.New("no source")
	}
	for _, path := range paths {
		if _, err := confine.Name(path); err != nil || strings.HasPrefix(path, "/") {
			return fmt.Errorf("path %q does not name a file in the volume", path)
		}
	}
	return nil
}

// ofOneKind reports whether a volume has at most one source, of a supported type. Otherwise the checks of one
// type could not vouch for another.
func ofOneKind(source *corev1.VolumeSource) bool {
	return slices.Contains([]corev1.VolumeSource{
		{EmptyDir: source.EmptyDir}, {PersistentVolumeClaim: source.PersistentVolumeClaim}, {Secret: source.Secret}, {Projected: source.Projected},
	}, *source)
}

// admitMounts requires that mount paths can be links, and device paths device nodes: none is inside another.
// The API server admits paths with "..", which are rejected here.
func admitMounts(c *corev1.Container) error {
	var paths []string
	for _, mount := range c.VolumeMounts {
		if mount.SubPath != "" || mount.SubPathExpr != "" {
			return fmt.Errorf("mount %s: subPath is not supported", mount.MountPath)
		}
		paths = append(paths, mount.MountPath)
	}
	for _, device := range c.VolumeDevices {
		paths = append(paths, device.DevicePath)
	}
	taken := []string{vmpb.TerminationMessagePath}
	for _, mounted := range paths {
		if _, err := confine.Name(mounted); !path.IsAbs(mounted) || err != nil {
			return fmt.Errorf("path %q is not a clean, absolute path below the root", mounted)
		}
		for _, other := range taken {
			if within(mounted, other) || within(other, mounted) {
				return fmt.Errorf("the paths %s and %s overlap", mounted, other)
			}
		}
		taken = append(taken, mounted)
	}
	return nil
}

// within reports whether a path equals the other one or is inside it.
func within(inner, outer string) bool {
	inner, outer = path.Clean(inner), path.Clean(outer)
	return inner == outer || strings.HasPrefix(inner, strings.TrimSuffix(outer, "/")+"/")
}

// podAddress is the address of hosts and Pods, which all run on this machine.
const podAddress = "127.0.0.1"

// environment returns the environment of the Pod's process, as NAME=value, including the variables that the
// host sets.
func environment(pod *corev1.Pod, root string, host Config) ([]string, error) {
	values := map[string]string{}
	var result []string
	for _, variable := range pod.Spec.Containers[0].Env {
		value := expand(variable.Value, values)
		if from := variable.ValueFrom; from != nil && from.FieldRef != nil {
			var err error
			if value, err = fieldOf(pod, from.FieldRef.FieldPath); err != nil {
				return nil, fmt.Errorf("variable %s: %w", variable.Name, err)
			}
		}
		if variable.Name == temporary {
			value = filepath.Join(root, value) // a path of the container; see admitEnv
		}
		values[variable.Name] = value
		result = append(result, variable.Name+"="+value)
	}
	outside := ""
	if host.NoOutside {
		outside = vmpb.OutsideRefused
	}
	// The last value of a name takes precedence.
	return append(result, "PATH="+host.Path, vmpb.EnvSwitch+"="+host.Switch, vmpb.EnvOutside+"="+outside, vmpb.EnvImages+"="+host.Images, vmpb.EnvImageServers+"="+host.ImageServers, vmpb.EnvRoot+"="+root), nil
}

// fieldOf returns the value of a field of the Pod, like the downward API.
func fieldOf(pod *corev1.Pod, field string) (string, error) {
	switch field {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs":
		return podAddress, nil
	}
	return "", fmt.Errorf("field %q is not supported", field)
}

// expand replaces $(NAME) with the value of that name, and $$ with $, like Kubernetes: unknown names and any
// other $ are kept.
func expand(text string, known map[string]string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		text = after
		name, rest, closed := strings.Cut(strings.TrimPrefix(after, "("), ")")
		switch {
		case strings.HasPrefix(after, "$"):
			out.WriteByte('$')
			text = after[1:]
		case strings.HasPrefix(after, "(") && closed:
			value, ok := known[name]
			if !ok {
				value = "$(" + name + ")"
			}
			out.WriteString(value)
			text = rest
		default:
			out.WriteByte('$')
		}
	}
}
