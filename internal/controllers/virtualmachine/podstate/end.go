package podstate

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// End is why a hypervisor ended.
type End struct {
	// Reason is one of vmpb.Termination, of the Pod or of its container. It can be the
	// reason of a condition.
	Reason string
	// Message is for people.
	Message string
}

// Permanent reports whether the next hypervisor of the same spec will end in the same way.
func (e End) Permanent() bool {
	return e.Reason == vmpb.EndInvalidSpec || e.Reason == vmpb.EndImageRejected
}

// Intended reports whether the guest, the user or the controller wanted the end.
func (e End) Intended() bool {
	return slices.Contains([]string{vmpb.EndGuestShutdown, vmpb.EndTerminated, vmpb.EndStopped}, e.Reason)
}

// conditionReason is the form that the API server demands of a condition's reason.
var conditionReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

const (
	maxReason = 128
	// maxMessage limits the length of a hypervisor's message in bytes.
	maxMessage = 1024
)

// EndOf returns why the hypervisor in a Pod ended: its own termination message, or else
// what the host says of the Pod.
func EndOf(pod *corev1.Pod) End {
	end := End{Reason: pod.Status.Reason, Message: pod.Status.Message}
	for _, container := range pod.Status.ContainerStatuses {
		terminated := container.State.Terminated
		if container.Name != podspec.ContainerName || terminated == nil {
			continue
		}
		var own vmpb.Termination
		if err := json.Unmarshal([]byte(terminated.Message), &own); err == nil && own.Reason != "" {
			end = End{Reason: own.Reason, Message: own.Message}
		} else if end.Reason == "" {
			end = End{Reason: terminated.Reason, Message: terminated.Message}
		}
	}
	if len(end.Reason) > maxReason || !conditionReason.MatchString(end.Reason) {
		end.Reason = vmpb.EndInternal
	}
	end.Message = Truncate(end.Message)
	if end.Message == "" {
		end.Message = "The hypervisor ended without saying why."
	}
	return end
}

// Truncate shortens the message of a hypervisor to what a condition can hold. It cuts
// between characters: the API server would replace half a character, and the condition
// would differ from the message in every pass.
func Truncate(message string) string {
	message = strings.ToValidUTF8(message, "\uFFFD")
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "")
	}
	return message
}
