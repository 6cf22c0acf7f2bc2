package hostrunner

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// podAddress is the address of hosts and Pods alike: all are this machine.
const podAddress = "127.0.0.1"

// environment is the whole environment of the Pod's process, as NAME=value.
func environment(pod *corev1.Pod, root, path string) ([]string, error) {
	values := map[string]string{}
	var result []string
	for _, variable := range pod.Spec.Containers[0].Env {
		value, err := valueOf(pod, variable, values)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", variable.Name, err)
		}
		values[variable.Name] = value
		result = append(result, variable.Name+"="+value)
	}
	if _, own := values["PATH"]; !own {
		result = append(result, "PATH="+path)
	}
	// Last, since the last one of a name counts.
	return append(result, vmpb.EnvRoot+"="+root), nil
}

func valueOf(pod *corev1.Pod, variable corev1.EnvVar, known map[string]string) (string, error) {
	if variable.ValueFrom != nil && variable.ValueFrom.FieldRef != nil {
		return fieldOf(pod, variable.ValueFrom.FieldRef.FieldPath)
	}
	return expand(variable.Value, known), nil
}

// fieldOf is the downward API: the value of a field of the Pod.
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

// expand replaces $(NAME) by what is known under that name, and $$ by $, as Kubernetes
// does: unknown names stay as they are written, and so does a $ before anything else.
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
