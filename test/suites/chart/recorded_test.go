package chart

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"
)

// TestTools_JudgeRecordedObjects checks what tools show for objects that controllers wrote: Argo CD with config/argocd, Flux
// with the example, and those that have no health checks for Millwright's kinds and use kstatus, for example helm --wait.
// kstatus considers only the deletion, the observed generation, and the conditions Ready, Reconciling and Stalled:
// docs/design/0077-kstatus.md describes what follows from that.
func TestTools_JudgeRecordedObjects(t *testing.T) {
	t.Parallel()
	const current, inProgress, failed = status.CurrentStatus, status.InProgressStatus, status.FailedStatus
	text, err := os.ReadFile("testdata/recorded.yaml")
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]map[string]any{}
	if err := yaml.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	for state, want := range map[string]struct {
		kstatus status.Status
		argo    string
		flux    status.Status // only for MachineDeployments
	}{
		"new deployment":                         {current, "Progressing", inProgress},
		"deployment that creates machines":       {current, "Progressing", inProgress},
		"deployment whose class is invalid":      {current, "Progressing", inProgress},
		"deployment whose machines are rejected": {current, "Degraded", failed},
		"complete deployment":                    {current, "Healthy", current},
		"rollout":                                {current, "Progressing", inProgress},
		"rollout without progress":               {current, "Degraded", failed},
		"paused deployment":                      {current, "Suspended", inProgress},

		"set that creates machines":       {current, "Progressing", ""},
		"set whose machines are rejected": {current, "Degraded", ""},
		"complete set":                    {current, "Healthy", ""},

		"Machine without a node":          {current, "Progressing", ""},
		"Machine whose class is invalid":  {current, "Degraded", ""},
		"failed Machine":                  {current, "Degraded", ""},
		"Machine whose node is not ready": {inProgress, "Progressing", ""},
		"Machine":                         {current, "Healthy", ""},
		"deleted Machine":                 {status.TerminatingStatus, "Progressing", ""},

		"starting VM":          {inProgress, "Progressing", ""},
		"VM without its image": {inProgress, "Progressing", ""},
		"VM":                   {current, "Healthy", ""},
		"stopped VM":           {inProgress, "Suspended", ""},
	} {
		kind, _ := recorded[state]["kind"].(string)
		object, err := yaml.Marshal(recorded[state])
		delete(recorded, state)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			if got := judgedByKstatus(t, string(object)); got != want.kstatus {
				t.Errorf("kstatus: %s, want %s", got, want.kstatus)
			}
			if got, message := judge(t, strings.ToLower(kind), string(object)); got != want.argo {
				t.Errorf("Argo CD: %s: %q, want %s", got, message, want.argo)
			}
			if want.flux != "" {
				if got := judgedByFlux(t, string(object)); got != want.flux {
					t.Errorf("Flux: %s, want %s", got, want.flux)
				}
			}
		})
	}
	if len(recorded) > 0 {
		t.Errorf("no test of %v", recorded)
	}
}

// judgedByFlux returns the status of a MachineDeployment in YAML by the health checks of the example.
func judgedByFlux(t *testing.T, object string) status.Status {
	t.Helper()
	check := fluxCheck(t)
	switch {
	case holds(t, check.Failed, object):
		return status.FailedStatus
	case holds(t, check.Current, object):
		return status.CurrentStatus
	default:
		return status.InProgressStatus
	}
}
