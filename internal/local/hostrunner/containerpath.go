package hostrunner

import (
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
)

// ContainerPath is where a path of a Pod's container is on this machine, while the Pod
// exists; dir is that of the host's Config.
func ContainerPath(dir string, pod types.UID, path string) string {
	return filepath.Join(layout(dir).pod(string(pod)).root(), path)
}
